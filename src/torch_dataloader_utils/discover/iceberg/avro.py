"""Records of an Avro container file, by pyiceberg's readers.

Source: Avro 1.11 specification, "Object Container Files".
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_dataloader_utils._store import Buffer

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

_SYNC_BYTES = 16


def read_records(
    data: Buffer, wanted: Sequence[int], wanted_inside: Mapping[int, Sequence[int]] | None = None
) -> "tuple[Schema, Iterator[list[Any]]]":
    """The file's schema, and for each record the list of the values of the fields `wanted` (ids), None if missing.

    wanted_inside: the fields wanted of structs among them, by the struct's field id; these structs come as lists too,
        all others as pyiceberg's records with all fields. Fields that are not wanted are skipped, not decoded.
    """
    from pyiceberg.avro.decoder import StreamingBinaryDecoder, new_decoder
    from pyiceberg.avro.file import META_SCHEMA, AvroFileHeader
    from pyiceberg.avro.resolver import construct_reader

    content = bytes(data)
    header_decoder = StreamingBinaryDecoder(content)
    header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(header_decoder)
    file_schema = header.get_schema()
    # The compiled decoder of pyiceberg 0.12 rounds doubles to floats (2.222 becomes 2.2219998836517334), and is ten
    # times as fast as the other; only manifests with such partition values need the slow one.
    make_decoder = StreamingBinaryDecoder if _holds_doubles(file_schema) else new_decoder
    reader = _FieldsReader(file_schema.as_struct(), construct_reader(file_schema), wanted, wanted_inside or {})
    codec = header.compression_codec()
    blocks = StreamingBinaryDecoder(content[header_decoder.tell() :])
    left = len(content) - header_decoder.tell()

    def records() -> Iterator[list[Any]]:
        while blocks.tell() < left:
            count = blocks.read_int()
            block = blocks.read_bytes()
            decoder = make_decoder(codec.decompress(block) if codec else block)
            for _ in range(count):
                yield reader.read(decoder)
            if blocks.read(_SYNC_BYTES) != header.sync:
                raise ValueError("the sync marker after a block is wrong")

    return file_schema, records()


class _FieldsReader:
    """Reads chosen fields of a struct, by id, and skips the others."""

    def __init__(self, struct: Any, reader: Any, wanted: Sequence[int], inside: Mapping[int, Sequence[int]]) -> None:
        places = {field_id: place for place, field_id in enumerate(wanted)}
        self._num_fields = len(wanted)
        self._steps: list[tuple[int | None, Callable[[Any], Any]]] = []
        for each, (_, child) in zip(struct.fields, reader.field_readers, strict=True):
            place = places.get(each.field_id)
            if place is None:
                self._steps.append((None, child.skip))
            elif each.field_id in inside:
                self._steps.append((place, _FieldsReader(each.field_type, child, inside[each.field_id], {}).read))
            else:
                self._steps.append((place, child.read))

    def read(self, decoder: Any) -> list[Any]:
        """The values, in the order they are wanted."""
        values: list[Any] = [None] * self._num_fields
        for place, step in self._steps:
            if place is None:
                step(decoder)
            else:
                values[place] = step(decoder)
        return values


def _holds_doubles(schema: "Schema") -> bool:
    from pyiceberg.schema import index_by_id
    from pyiceberg.types import DoubleType

    return any(isinstance(field.field_type, DoubleType) for field in index_by_id(schema).values())
