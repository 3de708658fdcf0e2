"""Split strategies by name: plug-in packages announce them as entry points."""

from importlib.metadata import entry_points

from torch_dataloader_utils._core.splits import SplitStrategy
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

ENTRY_POINT_GROUP = "torch_dataloader_utils.split_strategies"


def find_strategy(strategy: SplitStrategy | str | None) -> SplitStrategy | None:
    """The strategy: an object as it is, or the entry point of that name (a class is called without arguments).

    Raises:
        ConfigError: no such entry point, or one that does not load.
        ConfigTypeError: a class, or an object without `generate`.
    """
    found = _load(strategy) if isinstance(strategy, str) else strategy
    if isinstance(found, type):
        raise ConfigTypeError(
            f"split_strategy={found.__name__} is a class: pass an object of it, such as {found.__name__}()."
        )
    if found is not None and not callable(getattr(found, "generate", None)):
        raise ConfigTypeError(
            f"split_strategy={found!r} has no generate(files, num_workers, epoch, num_ranks, rank) method. "
            "Write one, or use a built-in strategy."
        )
    return found


def _those(names: list[str]) -> str:
    return f"installed are {', '.join(map(repr, names))}" if names else "none is installed"


def _load(name: str) -> SplitStrategy:
    installed = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in installed:
        raise ConfigError(
            f"No split strategy {name!r}: {_those(sorted(installed))}. A package announces one as an entry "
            f"point in the group {ENTRY_POINT_GROUP!r}. Those of this library have no names: pass an object, such as "
            "RoundRobinSplitStrategy()."
        )
    point = installed[name]
    try:
        loaded = point.load()
        strategy: SplitStrategy = loaded() if isinstance(loaded, type) else loaded
    except Exception as error:
        raise ConfigError(
            f"Split strategy {name!r} ({point.value}) does not load: {type(error).__name__}: {error}. Mend the package "
            "that announces it. A class is called without arguments: pass an object of one that needs some."
        ) from error
    return strategy
