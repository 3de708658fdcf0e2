"""Encoders against plain Python and another implementation of XXH64; every form of column gives the same numbers."""

import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils import Bytes, Hash, RowDataset, StructuredDataset, Vocabulary, pack_tokens
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.shape.encode import encoded

xxhash = pytest.importorskip("xxhash")

# Values that are written down here for ever: what was trained with a hash must be served with the same one.
GOLDEN = [
    ("München", 0, 14605544750314078354),
    (5, 0, 9925382920258869565),
    (-1, 7, 8675408972835071817),
    ("x" * 100, 7, 12563586253032677671),
]
TEXTS = st.one_of(st.text(max_size=70), st.sampled_from(["a", "b", "Paris", "x" * 31, "y" * 32, "z" * 64]))
INTEGERS = st.integers(-(2**63), 2**63 - 1)
LISTS = st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), TEXTS), max_size=4)), max_size=8)


@pytest.mark.parametrize(("value", "seed", "hashed"), GOLDEN)
def test_hashes_are_what_they_always_were(value, seed, hashed):
    for buckets in (2**62, 1_000_000):
        assert encoded(pa.array([value]), Hash(buckets=buckets, seed=seed)).to_pylist() == [hashed % buckets]


def bucket(value, encoder):
    if value is None:
        return None
    content = value.encode() if isinstance(value, str) else value
    if isinstance(value, int):
        content = (value % 2**64).to_bytes(8, "little")
    return xxhash.xxh64_intdigest(content, encoder.seed % 2**64) % encoder.buckets


def number(value, encoder, values):
    """By the definition: the place among numbers from 0 without `unknown`."""
    if value is None:
        return None
    numbers = [each for each in range(len(values) + 1) if each != encoder.unknown]
    return numbers[values.index(value)] if value in values else encoder.unknown


def forms(rows, data_type):
    """The same rows as arrays of several layouts: whole, a slice, a dictionary, large."""
    whole = pa.array(rows, data_type)
    yield whole
    yield pa.concat_arrays([pa.array([None, *rows[:1]], data_type), whole]).slice(1 + len(rows[:1]))
    yield whole.dictionary_encode().slice(0)
    if pa.types.is_string(data_type):
        yield whole.cast(pa.large_string())
        yield whole.dictionary_encode(null_encoding="encode")
        yield pa.RunEndEncodedArray.from_arrays(range(1, len(rows) + 1), whole) if rows else whole


@given(
    rows=st.one_of(
        st.tuples(st.just(pa.string()), st.lists(st.one_of(st.none(), TEXTS), max_size=12)),
        st.tuples(st.just(pa.binary()), st.lists(st.one_of(st.none(), st.binary(max_size=70)), max_size=12)),
        st.tuples(st.just(pa.int64()), st.lists(st.one_of(st.none(), INTEGERS), max_size=12)),
    ),
    buckets=st.integers(1, 2**63 - 1),
    seed=st.integers(-(2**64), 2**65),
)
@settings(max_examples=effort(60), deadline=None)
def test_hash_is_xxh64_of_the_value_in_every_layout(rows, buckets, seed):
    data_type, values = rows
    encoder = Hash(buckets=buckets, seed=seed)
    for array in forms(values, data_type):
        assert encoded(array, encoder).to_pylist() == [bucket(value, encoder) for value in values]


@given(data=st.data(), unknown=st.integers(-2, 8))
@settings(max_examples=effort(60), deadline=None)
def test_vocabulary_numbers_its_values_in_order_and_leaves_out_unknown(data, unknown):
    kind, data_type = data.draw(st.sampled_from([(TEXTS, pa.string()), (INTEGERS, pa.int64())]))
    values = data.draw(st.lists(kind, unique=True, max_size=6))
    rows = data.draw(st.lists(st.one_of(st.none(), kind, *([st.sampled_from(values)] if values else [])), max_size=12))
    encoder = pickle.loads(pickle.dumps(Vocabulary(pa.array(values, data_type), unknown=unknown)))
    wanted = [number(row, encoder, values) for row in rows]
    for array in forms(rows, data_type):
        assert encoded(array, encoder).to_pylist() == wanted
    assert all(each is None or each < encoder.num_ids for each in wanted)
    assert encoder.num_ids <= max(len(values), unknown) + 1


@given(rows=LISTS, start=st.integers(0, 8))
@settings(max_examples=effort(40), deadline=None)
def test_lists_of_texts_are_encoded_item_by_item(rows, start):
    encoder = Hash(1000)
    wanted = [None if row is None else [bucket(item, encoder) for item in row] for row in rows[start:]]
    for data_type in (pa.list_(pa.string()), pa.large_list(pa.dictionary(pa.int32(), pa.string()))):
        assert encoded(pa.array(rows, data_type)[start:], encoder).to_pylist() == wanted
    pairs = [None if row is None else [*row, "a", "b"][:2] for row in rows]
    wanted = [None if row is None else [bucket(item, encoder) for item in row] for row in pairs[start:]]
    assert encoded(pa.array(pairs, pa.list_(pa.string(), 2))[start:], encoder).to_pylist() == wanted


@given(rows=st.lists(st.one_of(st.none(), st.text(max_size=9)), max_size=12), start=st.integers(0, 12))
@settings(max_examples=effort(40), deadline=None)
def test_bytes_are_those_of_the_text(rows, start):
    for array in forms(rows, pa.string()):
        wanted = [None if row is None else list(row.encode()) for row in rows[start:]]
        found = encoded(array[start:], Bytes())
        found.validate(full=True)
        assert found.to_pylist() == wanted


@pytest.mark.parametrize("hashed", ["hash_bytes"])
def test_values_of_one_hash_are_told_apart(monkeypatch, hashed):
    # No two texts of one XXH64 are known: three bits of it make some.
    from torch_dataloader_utils._arrow import xxh64
    from torch_dataloader_utils.shape import encode

    monkeypatch.setattr(encode, hashed, lambda spans, seed: xxh64.hash_bytes(spans, seed) & 0xFFF)
    values = [f"value {i}" for i in range(90)]
    encoder = Vocabulary(values, unknown=-1)
    rows = [*values, *(f"other {i}" for i in range(9000))]
    assert encoded(pa.array(rows), encoder).to_pylist() == [*range(90), *[-1] * 9000]


def test_unsigned_integers_beyond_int64_are_not_taken_for_negative_ones():
    encoder = Vocabulary([-1, 3], unknown=9)
    assert encoded(pa.array([2**64 - 1, 3], pa.uint64()), encoder).to_pylist() == [9, 1]
    assert encoded(pa.array([-1, 3], pa.int8()), encoder).to_pylist() == [0, 1]


CITIES = ["Paris", "Rome", None, "Oslo", "Paris", "Bern", "Rome"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cities")
    tags = [["a", "b"], [], ["b"], ["c"], [], ["a"], ["a"]]
    for part in ("x", "y"):
        (folder / f"kind={part}").mkdir()
        table = pa.table({"row": range(7), "city": CITIES, "tags": tags, "id": pa.array(range(7), pa.uint16())})
        pq.write_table(table, folder / f"kind={part}" / "0.parquet", row_group_size=3)
    return folder


@pytest.mark.processes
@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_output_format_has_the_numbers(folder, output_format, num_workers):
    import pyarrow.compute as pc

    encode = {"city": Vocabulary(["Rome", "Paris"]), "tags": Hash(buckets=50), "kind": Vocabulary(["y", "x"])}
    nulls = {"nulls": {"city": {"fill": -1}}} if output_format in ("torch", "numpy") else {}
    loader, _ = StructuredDataset.create_dataloader(
        str(folder),
        encode=encode,
        batch_size=4,
        num_workers=num_workers,
        partitioning="hive",
        output_format=output_format,
        shuffle_rows=5,
        filters=pc.field("city") != "Bern",
        **nulls,
    )
    found = []
    for batch in loader:
        columns = batch.to_pydict() if output_format == "arrow" else batch
        rows = [columns[name] for name in ("row", "city", "tags", "kind")]
        rows = [each.tolist() if hasattr(each, "tolist") else list(each) for each in rows]
        found += [(row, city, list(map(int, tags)), kind) for row, city, tags, kind in zip(*rows, strict=True)]
    null = -1 if nulls else None
    table = pq.read_table(folder / "kind=x" / "0.parquet").to_pydict()
    cities = {"Paris": 2, "Rome": 1, None: null, "Oslo": 0}
    wanted = [
        (row, cities[city], [bucket(tag, encode["tags"]) for tag in tags], kind)
        for kind in (1, 2)
        for row, city, tags in zip(table["row"], table["city"], table["tags"], strict=True)
        if city not in ("Bern", None)
    ]
    assert sorted(found) == sorted(wanted)


def test_encoded_columns_stack_and_have_masks(folder):
    encode = {"city": Hash(buckets=7), "id": Hash(buckets=7, seed=1)}
    rows = RowDataset(
        str(folder), encode=encode, columns=["city", "id"], stack={"x": ["city", "id"]}, nulls={"city": "mask"}
    )
    batch = rows.take(range(7))
    cities = [bucket(city, encode["city"]) or 0 for city in CITIES]
    assert batch["x"].tolist() == [[city, bucket(i, encode["id"])] for i, city in enumerate(cities)]
    assert batch["x_mask"][:, 0].tolist() == [city is not None for city in CITIES]


def test_columns_of_packed_documents_are_encoded(tmp_path):
    sources = ["web", "book", None, "code"]
    tokens = [[1, 2, 3], [4, 5], [6], [7, 8]]
    pq.write_table(pa.table({"tokens": tokens, "source": sources}), tmp_path / "0.parquet", row_group_size=2)
    encoder = Hash(buckets=90)
    loader, _ = StructuredDataset.create_dataloader(
        str(tmp_path),
        pack=pack_tokens("tokens", 4),
        columns=["source"],
        encode={"source": encoder},
        nulls={"source": {"fill": -1}},
        batch_size=1,
    )
    found = {number for batch in loader for number in batch.ragged("source").values.tolist()}
    assert found <= {-1 if each is None else bucket(each, encoder) for each in sources}
    assert bucket("web", encoder) in found


def test_texts_as_ragged_bytes_come_back(folder):
    loader, _ = StructuredDataset.create_dataloader(
        str(folder), columns=["city"], encode={"city": Bytes()}, nulls={"city": ("fill", 0)}, batch_size=5
    )
    texts = [bytes(each.tolist()).decode() for batch in loader for each in batch["city"]]
    assert texts == [city or "" for city in CITIES] * 2


def test_a_vocabulary_is_loaded_from_the_first_column_of_a_file(tmp_path):
    pq.write_table(pa.table({"value": ["b", "a"], "count": [3, 1]}), tmp_path / "v.parquet")
    encoder = Vocabulary.load(str(tmp_path / "v.parquet"))
    assert encoded(pa.array(["a", "b", "c"]), encoder).to_pylist() == [2, 1, 0]
    assert (len(encoder), encoder.num_ids) == (2, 3)
    assert repr(encoder) == repr(Vocabulary(["b", "a"])) != repr(Vocabulary(["a", "b"]))


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"encode": {"city": "hash"}}, ConfigTypeError, "pass a dict of columns and encoders"),
        ({"encode": {"city": ["Rome"]}}, ConfigTypeError, r'or \{"city": Vocabulary\(\["Rome", "Paris"\]\)\}'),
        ({"encode": {"town": Hash(buckets=3)}}, ConfigError, "names column 'town', which batches do not have"),
        ({"encode": {"city": Vocabulary([1])}}, ConfigError, "as its values .int64. are"),
        ({"encode": {"id": Bytes()}}, ConfigError, "Bytes takes columns of text or binary"),
        ({"encode": {"city": Hash(buckets=3)}, "columns": ["id"]}, ConfigError, "name it in columns= too"),
    ],
)
def test_what_cannot_be_encoded_is_refused_before_the_first_batch(folder, options, kind, says):
    with pytest.raises(kind, match=says):
        StructuredDataset(str(folder), **options)


def test_vocabularies_of_wrong_values_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="has 'a' more than once"):
        Vocabulary(["a", "b", "a"])
    with pytest.raises(ConfigTypeError, match=r"Vocabulary\.load\(path\) reads a file"):
        Vocabulary("v.parquet")
    assert Hash(9) == Hash(buckets=9)
    with pytest.raises(ConfigError, match="has 1 nulls"):
        Vocabulary(["a", None])
    with pytest.raises(ConfigTypeError, match="of type double"):
        Vocabulary([1.5])
    with pytest.raises(ConfigTypeError, match="pass a list of texts"):
        Vocabulary(["a", 3])
    for values in ("ab", b"ab", {"a", "b"}, frozenset("ab"), {"a": 7}):
        with pytest.raises(ConfigTypeError, match="in a fixed order"):
            Vocabulary(values)
    (tmp_path / "v.parquet").write_text("no")
    for name in ("v.parquet", "none.parquet"):
        with pytest.raises(ConfigError, match="no vocabulary can be read"):
            Vocabulary.load(str(tmp_path / name))
    with pytest.raises(ConfigTypeError, match="path=3: pass a path"):
        Vocabulary.load(3)
    with pytest.raises(ConfigError, match="buckets=0"):
        Hash(buckets=0)
