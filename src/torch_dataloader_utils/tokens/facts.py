"""What is known of a corpus before it is opened."""

from dataclasses import dataclass

from torch_dataloader_utils.errors import FileChangedError
from torch_dataloader_utils.tokens.index_format import IndexHeader
from torch_dataloader_utils.tokens.ranges import FileIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFacts:
    """What is known of a corpus before it is opened.

    `document_count` counts entries of the document array (documents + 1), as the format does. `token_count` and
    `identities` (of .idx and .bin) are None when the file that told us did not know them.
    """

    sequence_count: int
    document_count: int
    token_count: int | None = None
    identities: tuple[FileIdentity, FileIdentity] | None = None

    def check(self, header: IndexHeader, identities: tuple[FileIdentity, FileIdentity], *, path_prefix: str) -> None:
        """Compare with the files as they are now opened.

        Raises:
            FileChangedError: counts or identity differ; shows both sides.
        """
        seen = (header.sequence_count, header.document_count)
        known = (self.sequence_count, self.document_count)
        if seen != known or (self.identities is not None and self.identities != identities):
            raise FileChangedError(
                f"{path_prefix} is not the corpus that the sequences file describes: {seen} sequences and document "
                f"entries, {identities}; the file says {known}, {self.identities}. Write the sequences file again."
            )
