"""One source of a blend: a loader that fits, and marks in it as a blend's state keeps them."""

from dataclasses import asdict
from typing import Any

from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.state import decode_state, encode_state
from torch_dataloader_utils.blending.options import Unit
from torch_dataloader_utils.blending.passes import Mark, Passes, pass_start
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError
from torch_dataloader_utils.stream.loader import TableDataLoader


class Source:
    """A loader as a blend sees it.

    Raises:
        ConfigError: a loader that no blend can resume, inside an epoch, with nothing for some rank or with rows that
            are not counted.
    """

    def __init__(self, loader: TableDataLoader, unit: Unit, index: int) -> None:
        _check_loader(loader, unit, index)
        self.loader = loader
        if loader.dataset.compared is not None:
            # Ranks of a blend may be in different passes of a source; the blend compares where it stands itself.
            loader.dataset.compared.compares_places = False
        self.index = index
        self.identity = loader.dataset.planner.identity
        self.passes = Passes(loader.dataset, unit, index)
        if (self.passes.lengths(self.begin(0).start) < 1).any():
            raise ConfigError(
                f"Source {index} of the blend has nothing for some rank; leave it out, or use fewer ranks."
            )

    @property
    def topology(self) -> Topology:
        """The loader's present topology."""
        return self.loader.dataset.topology

    @property
    def rank(self) -> int:
        """The rank that the loader reads for."""
        return self.loader.dataset.rank

    def decode_part(self, share: float) -> None:
        """Let the loader decode ahead this part of what it would alone.

        At least the row group in use and the next one, in each worker: with less, nothing would be decoded ahead.
        """
        alone_bytes = self.loader.dataset.stages.decode.budget_bytes
        largest_bytes = int(self.loader.dataset.plan.inventory.groups.projected_bytes.max())
        least_bytes = 2 * largest_bytes * self.topology.num_workers
        self.loader.decode_within(min(alone_bytes, max(int(share * alone_bytes), least_bytes)))

    def begin(self, epoch: int) -> Mark:
        """The beginning of a blend epoch."""
        return Mark(start=pass_start(epoch, 0, self.topology))

    def encode(self, mark: Mark) -> dict[str, Any]:
        """The mark as a JSON-able dict."""
        return {
            "state": encode_state(self.identity, mark.start),
            "topology": asdict(mark.topology),
            "passes": mark.passes,
            "taken": mark.taken,
        }

    def decode(self, entry: dict[str, Any]) -> Mark:
        """The mark that `encode` wrote, under its own topology.

        Raises:
            CheckpointMismatchError: it is of other data or options.
        """
        topology = Topology(**entry["topology"])
        try:
            start, _ = decode_state(entry["state"], self.identity, topology)
        except CheckpointMismatchError as error:
            raise CheckpointMismatchError(f"Source {self.index} of the blend: {error}") from error
        return Mark(start=start, passes=entry["passes"], taken=entry["taken"])


def _check_loader(loader: TableDataLoader, unit: Unit, index: int) -> None:
    if loader.num_workers > 1 and not loader.in_order:
        raise ConfigError(
            f"Source {index} of the blend has in_order=False: its batches come as they are ready, and no "
            "state could say which of them were given. Leave in_order=True."
        )
    if loader.next_position.segments:
        raise ConfigError(
            f"Source {index} of the blend stands inside an epoch: a state was loaded into it. A blend begins its "
            "sources at their beginning. Make the loader anew, and load the blend's own state into the blend."
        )
    if unit == "sample" and loader.dataset.planner.options.max_tokens_per_batch is not None:
        raise ConfigError(
            f"Source {index} of the blend limits the tokens of its batches (max_tokens), and "
            "per='sample' makes batches of other rows. Blend per='batch'."
        )
