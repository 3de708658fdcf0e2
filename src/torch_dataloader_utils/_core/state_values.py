"""Checks the types and ranges of a state's values: its checksum shows accidents only, since anyone can compute one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch_dataloader_utils._core.arguments import is_integer
from torch_dataloader_utils.errors import CheckpointMismatchError

_LOG_KEYS = ("num_ranks", "num_workers", "batch_size", "drop_last", "steps", "cursors")

# Plans take memory for each worker of each rank of a log; no job has a million.
_MOST_WORKERS = 1 << 20
_MOST = 2**63 - 1


def check_values(state: Mapping[str, Any]) -> None:
    """Raises CheckpointMismatchError unless all values have the types and ranges of `encode_state`."""
    refuse_misfits(_findings(state))


def refuse_misfits(findings: Iterable[tuple[str, Any, bool]]) -> None:
    """Raises CheckpointMismatchError for the first of (name, value, whether it fits) that does not fit."""
    for name, value, fits in findings:
        if not fits:
            text = repr(value)
            shown = text if len(text) <= 80 else f"{text[:80]}..."
            raise CheckpointMismatchError(
                f"The state says {name}={shown}, which no loader writes: it was changed after it was saved. Load what "
                "state_dict() gave."
            )


def _findings(state: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """(name, value, whether it fits); later ones rely on earlier ones, so stop at the first that does not fit."""
    yield "epoch", state["epoch"], is_count(state["epoch"])
    yield "fingerprint", state["fingerprint"], isinstance(state["fingerprint"], str)
    for name in ("settings", "options"):
        pairs = state.get(name, [])
        yield name, pairs, is_list(pairs) and all(is_list(pair, 2) and isinstance(pair[0], str) for pair in pairs)
    if "worker" in state:
        yield "worker", state["worker"], is_count(state["worker"])
    log = state["log"]
    yield "log", log, isinstance(log, Mapping) and set(log) == set(_LOG_KEYS) and all(map(is_list, log.values()))
    columns = [log[name] for name in _LOG_KEYS if log[name] or name != "cursors"]
    yield "log", log, all(len(one) == len(other) for one, other in pairwise(columns))
    for num_ranks, num_workers, batch_size, drop_last, steps, of_ranks in log_entries(log):
        yield "num_ranks", num_ranks, is_count(num_ranks, 1) and num_ranks <= _MOST_WORKERS
        yield "num_workers", num_workers, is_count(num_workers, 1) and num_ranks * num_workers <= _MOST_WORKERS
        yield "batch_size", batch_size, is_count(batch_size, 1)
        yield "drop_last", drop_last, isinstance(drop_last, bool)
        each = steps if is_list(steps, num_ranks) else [steps]
        yield "steps", steps, _are_steps(each)
        yield "cursors", of_ranks, is_list(of_ranks) and all(_is_cursors(c, num_ranks, num_workers) for c in of_ranks)


def log_entries(log: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Its entries, one a topology: the values of `_LOG_KEYS`, with no cursors where the log has none at all."""
    cursors = log["cursors"] or [[]] * len(log["steps"])
    return zip(*(log[name] for name in _LOG_KEYS[:-1]), cursors, strict=True)


def _are_steps(values: Sequence[Any]) -> bool:
    """Whether each is a count, or None; at once, as there is one for each rank of a job."""
    counts = [value for value in values if value is not None]
    if set(map(type, counts)) <= {int}:
        return not counts or (min(counts) >= 0 and max(counts) <= _MOST)
    return all(map(is_count, counts))


def _is_cursors(value: Any, num_ranks: int, num_workers: int) -> bool:
    """Whether it is [rank, [[units, rows], one a worker]]."""
    if not is_list(value, 2) or not is_count(value[0]) or value[0] >= num_ranks:
        return False
    return is_list(value[1], num_workers) and all(is_list(c, 2) and all(map(is_count, c)) for c in value[1])


def is_count(value: Any, least: int = 0) -> bool:
    """Whether it is a whole number from `least` on that int64 holds."""
    return is_integer(value) and least <= int(value) <= _MOST


def is_list(value: Any, length: int | None = None) -> bool:
    """Whether it is a list, or a tuple, which JSON makes a list; of this length if one is given."""
    return isinstance(value, list | tuple) and length in (None, len(value))
