"""The base of examples iterables (Hugging Face) around another one: columns and files are those of the source."""

from typing import Any

from datasets.iterable_dataset import _BaseExamplesIterable


def sources_of(examples: Any) -> list[Any]:
    """The examples iterables that one is made of; none for those that read files."""
    inner = getattr(examples, "ex_iterables", None) or [getattr(examples, "ex_iterable", None)]
    return [each for each in inner if each is not None]


class WrappedExamples(_BaseExamplesIterable):  # type: ignore[misc]
    """Has the columns and files of another examples iterable; subclasses decide which examples are given."""

    def __init__(self, ex_iterable: Any) -> None:
        """Wraps a source."""
        super().__init__()
        self.ex_iterable = ex_iterable

    @property
    def is_typed(self) -> bool:
        """That of the source."""
        return bool(self.ex_iterable.is_typed)

    @property
    def features(self) -> Any:
        """Those of the source."""
        return self.ex_iterable.features

    @property
    def num_shards(self) -> int:
        """Files that workers can share: those of the source."""
        return int(self.ex_iterable.num_shards)
