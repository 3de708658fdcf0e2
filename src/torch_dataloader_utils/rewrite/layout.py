"""Layout of the files that are written: which fields are required, and how columns are encoded and compressed."""

import io
import math
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._arrow.schema import as_nullable
from torch_dataloader_utils.rewrite.checksums import FieldPlace

# Bytes are weighed with what it takes to decode them: a codec has to save a tenth, or a fourth, of the bytes.
_CODECS = {"NONE": 1.0, "LZ4": 1.1, "ZSTD": 1.3}
# Each number of a dictionary is looked up; the bytes of split numbers are put together.
_PLAIN, _DICTIONARY, _SPLIT = "plain", "dictionary", "byte stream split"
_ENCODINGS = {_PLAIN: 1.0, _DICTIONARY: 1.1, _SPLIT: 1.1}
_TEXT = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_FLOATS = ("FLOAT", "DOUBLE")


def with_required(schema: pa.Schema, nulls: Collection[FieldPlace]) -> pa.Schema:
    """Return the schema in which every field is required that has no nulls."""
    return pa.schema([_required(field, (place,), nulls) for place, field in enumerate(schema)])


def _required(field: pa.Field, place: FieldPlace, nulls: Collection[FieldPlace]) -> pa.Field:
    kind = field.type
    inner = [_required(kind.field(i), (*place, i), nulls) for i in range(kind.num_fields)]
    if pa.types.is_struct(kind):
        kind = pa.struct(inner)
    elif pa.types.is_list(kind):
        kind = pa.list_(*inner)
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(*inner)
    elif pa.types.is_fixed_size_list(kind):
        kind = pa.list_(*inner, kind.list_size)
    return field.with_type(kind).with_nullable(field.nullable and (place in nulls or pa.types.is_null(kind)))


def in_schema(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows under a schema of the same types, in which more fields are required."""
    columns = [
        column if column.type.equals(field.type, check_metadata=True) else as_nullable(column, field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def choose_writing(sample: pa.RecordBatch) -> dict[str, Any]:
    """Return the options of pyarrow's writer that give each column of a sample the least bytes, weighed for decoding.

    The choice depends on bytes alone, so the same rows are always written in the same way.
    """
    least: dict[str, float] = {}
    chosen: dict[str, tuple[str, str]] = {}
    floats: list[str] = []
    for encoding, encoding_weight in _ENCODINGS.items():
        for codec, codec_weight in _CODECS.items():
            options = {"compression": codec, "use_dictionary": encoding == _DICTIONARY}
            if encoding == _SPLIT:
                options["use_byte_stream_split"] = floats
            leaves = _measured(sample, options)
            floats = [
                name for name, (leaf, *others) in leaves.items() if leaf["physical_type"] in _FLOATS and not others
            ]
            for name, named in leaves.items():
                num_bytes = sum(leaf["total_compressed_size"] for leaf in named)
                is_text = any(leaf["physical_type"] in _TEXT for leaf in named)
                cost = num_bytes * codec_weight * (1.0 if is_text else encoding_weight)
                if cost < least.get(name, math.inf):
                    least[name], chosen[name] = cost, (encoding, codec)
    return {
        "compression": {name: codec for name, (_, codec) in chosen.items()},
        "use_dictionary": [name for name, (encoding, _) in chosen.items() if encoding == _DICTIONARY],
        "use_byte_stream_split": [name for name, (encoding, _) in chosen.items() if encoding == _SPLIT],
    }


def _measured(sample: pa.RecordBatch, options: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the facts of the leaf columns of the sample, written with these options, by dotted path.

    A column `a.b` and the field b of a struct a have one path, by which pyarrow gives both the same options.
    """
    sink = io.BytesIO()
    with open_writer(sink, sample.schema, options) as writer:
        writer.write_batch(sample)
    group = pq.read_metadata(sink).row_group(0)
    leaves: dict[str, list[dict[str, Any]]] = {}
    for number in range(group.num_columns):
        leaf = group.column(number).to_dict()
        leaves.setdefault(leaf["path_in_schema"], []).append(leaf)
    return leaves


def open_writer(sink: Any, schema: pa.Schema, options: Mapping[str, Any]) -> pq.ParquetWriter:
    """Return a writer of a Parquet file with a page index."""
    return pq.ParquetWriter(sink, schema, version="2.6", write_page_index=True, **options)
