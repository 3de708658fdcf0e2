"""The batches of one source of a blend, pass after pass without end."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

from torch_dataloader_utils._core.state import encode_state
from torch_dataloader_utils.blending.passes import Mark, Passes, blend_epoch, pass_start
from torch_dataloader_utils.blending.rows import num_rows
from torch_dataloader_utils.blending.source import Source
from torch_dataloader_utils.errors import ConfigError


def endless_batches(source: Source, mark: Mark) -> Generator[tuple[int, Any]]:
    """(rows to skip, batch) from a mark on, pass after pass, without end; only the first batch has rows to skip.

    Raises:
        ConfigError: units are rows, and a batch has more or fewer than were planned.
    """
    loader, passes, rank = source.loader, source.passes, source.rank
    place = passes.places(mark, [rank])[0]
    rows = passes.step_units(passes.topology)
    steps, skip = divmod(place.units, rows)
    segment = replace(place.start.segment, steps=steps)
    loader.load_state_dict(encode_state(source.identity, replace(place.start, segment=segment)))
    start, number = place.start, place.number
    left = int(passes.lengths(start)[rank]) - steps * rows
    while True:
        with closing(cast("Generator[Any]", iter(loader))) as batches:
            for batch in _as_planned(passes, batches, left):
                # A rank with a row less than others ends with a batch of B - 1 rows and one of 1.
                if skip and skip >= (present := num_rows(batch)):
                    skip -= present
                    continue
                yield skip, batch
                skip = 0
        number += 1
        start = pass_start(blend_epoch(start), number, passes.topology)
        loader.set_epoch(start.epoch)
        left = int(passes.lengths(start)[rank])


def _as_planned(passes: Passes, batches: Iterable[Any], left: int) -> Iterator[Any]:
    """The batches of a pass, or of the rest of one, that has `left` units.

    Planned rows decide when the source is exhausted and where a state leads; with others, rows would come again or
    never.
    """
    if passes.unit == "batch":
        yield from batches
        return
    full = passes.step_units(passes.topology)
    for batch in batches:
        present = num_rows(batch)
        # The last B rows may come as B - 1 and 1.
        if present > left or (left > full and present != full):
            raise _other_rows(passes.index, present, min(full, left))
        left -= present
        yield batch
    if left:
        raise _other_rows(passes.index, 0, left)


def _other_rows(index: int, present: int, planned: int) -> ConfigError:
    return ConfigError(
        f"Source {index} of the blend gave {present} rows where {planned} were planned (does its "
        "transform or collate_fn leave rows out or add some?), and per='sample' counts them. Leave rows out with "
        "filters=, apply the function to the blend's batches, or blend per='batch'."
    )
