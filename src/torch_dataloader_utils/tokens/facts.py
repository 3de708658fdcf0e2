"""Counts and identity of a corpus, known from a sequences file before the corpus is opened."""

from dataclasses import dataclass

from torch_dataloader_utils._store import FileStat, redact
from torch_dataloader_utils.errors import FileChangedError
from torch_dataloader_utils.tokens.index_format import IndexHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFacts:
    """What is known of a corpus before it is opened.

    `document_count` counts entries of the document array (documents + 1), as the format does. `token_count` and
    `identities` (size and identity of .idx and .bin) are None when the file that told us did not know them.
    """

    sequence_count: int
    document_count: int
    token_count: int | None = None
    identities: tuple[FileStat, FileStat] | None = None

    def check(self, header: IndexHeader, identities: tuple[FileStat, FileStat], *, path_prefix: str) -> None:
        """Compare with the files as they are now opened.

        Raises:
            FileChangedError: counts or identity differ; shows both sides.
        """
        seen = (header.sequence_count, header.document_count)
        known = (self.sequence_count, self.document_count)
        if seen != known or (self.identities is not None and self.identities != identities):
            raise FileChangedError(
                f"{redact(path_prefix)} is not the corpus that the sequences file describes: {seen} sequences and "
                f"document entries, {identities}; the file says {known}, {self.identities}. Write the file again."
            )
