"""Tokenizes text and conversations while they are read: a reader around the reader of a data set."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._arrow.documents import Documents, list_offsets, to_plain
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._core.skipping import log_left_out
from torch_dataloader_utils.errors import SchemaError, TransformError
from torch_dataloader_utils.samples.kept_tokens import KeptTokens
from torch_dataloader_utils.samples.named_tokenizer import LABELS, TOKENS, NamedTokenizer
from torch_dataloader_utils.samples.tokenizers import check_token_lists
from torch_dataloader_utils.tables.reader import Reader

BAD_ROW = -1
"""Length of a row that the tokenizer refuses."""

# Errors of the machine, not of a row: another host would not skip the same rows.
_NOT_OF_THE_ROW = (MemoryError, OSError, ImportError)


def output_column(output: str) -> str:
    """Return the name of the column that holds an output of the tokenizer; messages show it too."""
    return f"{output} of the tokenizer"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenizingReader:
    """Reader that replaces the first column by its tokens, and appends the tokenizer's outputs as columns.

    outputs: Names of lists that the tokenizer returns beside the tokens, each as long as the tokens.
    skips_bad_rows: Whether rows that the tokenizer refuses have no tokens, instead of raising an error.
    kept: Tokens that this host keeps; None to tokenize at every read.
    """

    reader: Reader
    tokenizer: NamedTokenizer
    outputs: tuple[str, ...] = ()
    skips_bad_rows: bool = False
    kept: KeptTokens | None = None

    def read(self, task: RowGroupTask) -> pa.RecordBatch:
        """Return the live rows of one row group; null rows and bad rows have no tokens.

        Raises:
            SchemaError: the tokenizer did not return one flat list of int32 tokens for each text, or not all outputs.
            TransformError: the tokenizer raised an error; the message names the row.
            DataError, StoreError: see Reader.read.
        """
        rows = self.reader.read(task)
        lists, _ = self._tokenized(rows, task)
        names = [*rows.schema.names, *map(output_column, self.outputs)]
        return pa.RecordBatch.from_arrays([lists[0], *rows.columns[1:], *lists[1:]], names=names)

    def list_items(self, task: RowGroupTask, column: str) -> Int64s | None:  # noqa: ARG002  # as Reader.list_items
        """Return None: footers do not count the tokens of a text."""
        return None

    def measure(self, task: RowGroupTask) -> pa.RecordBatch:
        """Return one column: the tokens of each live row, BAD_ROW for a row that the tokenizer refuses.

        Raises:
            See `read`.
        """
        rows = self.reader.read(task)
        lists, bad = self._tokenized(rows, task)
        lengths = np.diff(list_offsets(lists[0]))
        lengths[list(bad)] = BAD_ROW
        for refusal in bad.values():
            log_left_out(refusal)
        return pa.RecordBatch.from_arrays([pa.array(lengths)], names=["tokens"])

    def _tokenized(self, rows: pa.RecordBatch, task: RowGroupTask) -> tuple[list[pa.Array], dict[int, TransformError]]:
        """Return the lists of tokens and of each output, and the error of each bad row by its number.

        Row groups with bad rows are not kept: the reason for each bad row is found again.
        """
        if self.kept is None:
            return self._tokenize(rows, task.where)
        taken = rows.select(list(self.tokenizer.columns) or rows.schema.names[:1])
        key = self.kept.key(taken, str(self.tokenizer.version), self.outputs, task)
        lists = self.kept.get(key, rows.num_rows)
        if lists is not None:
            return lists, {}
        lists, bad = self._tokenize(rows, task.where)
        if not bad:
            self.kept.put(key, lists)
        return lists, bad

    def _tokenize(self, rows: pa.RecordBatch, where: str) -> tuple[list[pa.Array], dict[int, TransformError]]:
        """Return the result of `_tokenized` by calling the tokenizer."""
        values = {row: value for row, value in enumerate(self._values(rows)) if value is not None}
        bad: dict[int, TransformError] = {}
        try:
            documents = self._documents(list(values.values()), where)
        except TransformError:
            alone, bad = self._one_by_one(values, where)
            if not bad:
                raise
            values = {row: values[row] for row in alone}
            documents = [
                check_token_lists([given[output].values for given in alone.values()], len(alone), where)
                for output in range(1 + len(self.outputs))
            ]
        is_there = np.zeros(rows.num_rows, dtype=np.bool_)
        is_there[list(values)] = True
        names = (TOKENS, *self.outputs)
        lists = [_as_lists(each, is_there, output_type(name)) for name, each in zip(names, documents, strict=True)]
        return lists, bad

    def _values(self, rows: pa.RecordBatch) -> list[Any]:
        if self.tokenizer.columns:
            return list(rows.select(list(self.tokenizer.columns)).to_pylist())
        return list(to_plain(rows.column(0)).to_pylist())

    def _documents(self, values: list[Any], where: str) -> list[Documents]:
        """Return the tokens of the values, and each output."""
        try:
            given = self.tokenizer.call(values, self.outputs) if values else {}
        except Exception as error:  # a user's tokenizer may raise anything
            raise TransformError(
                f"The tokenizer raised {type(error).__name__} for {where}: {error}. Correct the row or the tokenizer; "
                'on_error="skip" leaves such rows out.'
            ) from error
        named = given if isinstance(given, Mapping) else {TOKENS: given}
        wanted = (TOKENS, *self.outputs)
        if values and (missing := [name for name in wanted if name not in named]):
            raise SchemaError(
                f"The tokenizer gave {sorted(map(str, named))} for {where}, and not {missing}: let it return token "
                f"lists, or a mapping with {list(wanted)}."
            )
        return [check_token_lists(named.get(name, []), len(values), where) for name in wanted]

    def _one_by_one(
        self, values: dict[int, Any], where: str
    ) -> tuple[dict[int, list[Documents]], dict[int, TransformError]]:
        """Return `_documents` of each row alone, and the errors of the rows that the tokenizer refuses.

        Raises:
            TransformError: bad rows are not skipped, or the error is not about a row.
        """
        good: dict[int, list[Documents]] = {}
        bad: dict[int, TransformError] = {}
        for row, value in values.items():
            try:
                good[row] = self._documents([value], f"{where}, live row {row}")
            except TransformError as refusal:
                if not self.skips_bad_rows or isinstance(refusal.__cause__, _NOT_OF_THE_ROW):
                    raise
                bad[row] = refusal
        return good, bad


def tokenized(
    reader: Reader,
    tokenizer: NamedTokenizer | None,
    outputs: tuple[str, ...] = (),
    *,
    skips_bad_rows: bool = False,
    kept: KeptTokens | None = None,
) -> Reader | TokenizingReader:
    """Return the reader, with its first column tokenized if there is a tokenizer."""
    if tokenizer is None:
        return reader
    return TokenizingReader(
        reader=reader,
        tokenizer=tokenizer,
        outputs=outputs,
        skips_bad_rows=skips_bad_rows,
        kept=kept if tokenizer.keeps_tokens else None,
    )


def output_type(output: str) -> pa.DataType:
    """Return the type of the numbers of an output."""
    return pa.int64() if output == LABELS else pa.int32()


def _as_lists(documents: Documents, is_there: Any, number: pa.DataType) -> pa.Array:
    """Return the documents as lists of numbers that fit int32, with null for the rows that were null."""
    tokens, limits = documents.values, np.iinfo(np.int32)
    if len(tokens) and not limits.min <= tokens.min() <= tokens.max() <= limits.max:
        raise SchemaError(f"The tokenizer gave {tokens.max()} and {tokens.min()}: return tokens that fit int32.")
    lengths = np.zeros(len(is_there), dtype=np.int64)
    lengths[is_there] = documents.lengths
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    mask = pa.array(~is_there)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens, number), mask=mask)
