"""Parquet files with encrypted columns under a footer that anyone can read."""

import base64
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.parquet import encryption


class _Keys(encryption.KmsClient):  # type: ignore[misc] - pyarrow has no types
    def __init__(self, _config: Any) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _name: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, _name: str) -> bytes:
        return base64.b64decode(key)


def write_encrypted(path: Path, table: pa.Table, columns: list[str]) -> None:
    """Writes the table; these columns of it are encrypted, and the footer is not."""
    configuration = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"columns": columns}, plaintext_footer=True
    )
    factory = encryption.CryptoFactory(_Keys)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), configuration)
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
