"""Batches as TorchRec's KeyedJaggedTensor, against the one that TorchRec makes of the same lists."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils import Hash, Ragged, StructuredDataset, TensorBatch

pytestmark = pytest.mark.full

torchrec = pytest.importorskip("torchrec", reason="torchrec is not installed", exc_type=ImportError)

from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor  # noqa: E402

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError  # noqa: E402
from torch_dataloader_utils.integrations.torchrec import to_keyed_jagged_tensor  # noqa: E402

KINDS = [torch.int64, torch.int32, torch.int16, torch.uint8]


def ragged(rows: list[list[Any]], dtype: torch.dtype) -> Ragged:
    offsets = torch.tensor([0, *map(len, rows)]).cumsum(0)
    return Ragged(torch.tensor([value for row in rows for value in row], dtype=dtype), offsets)


@st.composite
def columns(draw) -> tuple[TensorBatch, dict[str, list[list[int]]]]:
    """A batch, and the lists that each row of each of its columns holds."""
    num_rows = draw(st.integers(0, 5))
    batch, lists = TensorBatch(), {}
    for name in draw(st.permutations("abcd"))[: draw(st.integers(1, 4))]:
        dtype, width = draw(st.sampled_from(KINDS)), draw(st.sampled_from([None, None, 0, 1, 3]))
        sizes = st.integers(0, 3) if width is None else st.just(width)
        rows = [
            draw(st.lists(st.integers(0, 100), min_size=size, max_size=size))
            for size in draw(st.lists(sizes, min_size=num_rows, max_size=num_rows))
        ]
        lists[name] = rows
        if width is None:
            batch[name] = ragged(rows, dtype)
        else:
            batch[name] = torch.tensor(rows, dtype=dtype).view(num_rows, *([] if width == 1 else [width]))
    return batch, lists


@given(data=columns(), weighted=st.booleans())
def test_it_is_what_torchrec_makes_of_the_lists(data, weighted: bool) -> None:
    batch, lists = data
    keys, weights = list(batch), None
    if weighted:
        weights = [f"{name}_weight" for name in keys]
        batch |= {
            f"{name}_weight": ragged([[v / 2 for v in row] for row in lists[name]], torch.float64) for name in keys
        }
    seen = to_keyed_jagged_tensor(batch, keys, weights=weights)
    wanted = KeyedJaggedTensor.from_jt_dict(
        {
            name: JaggedTensor.from_dense(
                [torch.tensor(row, dtype=torch.int64) for row in lists[name]],
                [torch.tensor(row) / 2 for row in lists[name]] if weighted else None,
            )
            for name in keys
        }
        if len(next(iter(lists.values())))
        else {name: JaggedTensor(torch.empty(0).long(), lengths=torch.empty(0).long()) for name in keys}
    )
    assert seen.keys() == wanted.keys() == keys
    assert seen.stride() == len(lists[keys[0]])
    assert seen.values().tolist() == wanted.values().tolist()
    assert seen.lengths().tolist() == wanted.lengths().tolist()
    assert seen.offsets().tolist() == wanted.offsets().tolist()
    assert seen.length_per_key() == [sum(map(len, lists[name])) for name in keys]
    if weighted:
        assert seen.weights().tolist() == [value / 2 for name in keys for row in lists[name] for value in row]
        assert seen.weights().dtype == torch.float32
    narrow = all(
        batch[name].values.dtype == torch.int32 if isinstance(batch[name], Ragged) else batch[name].dtype == torch.int32
        for name in keys
    )
    assert seen.values().dtype == (torch.int32 if narrow else torch.int64)
    for name in keys:
        assert [row.tolist() for row in seen[name].to_dense()] == lists[name]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    data = {
        "row": range(10),
        "tags": [[f"t{number}" for number in range(row % 3)] for row in range(10)],
        "city": [f"c{row % 4}" for row in range(10)],
    }
    pq.write_table(pa.table(data), tmp_path / "0.parquet")
    return tmp_path


def features(batch: TensorBatch) -> KeyedJaggedTensor:
    return to_keyed_jagged_tensor(batch, ["tags", "city"])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_embedding_bags_take_it_from_the_trainer_and_from_workers(table: Path, num_workers: int) -> None:
    bags = torchrec.EmbeddingBagCollection(
        tables=[
            torchrec.EmbeddingBagConfig(name=name, embedding_dim=4, num_embeddings=50, feature_names=[name])
            for name in ("tags", "city")
        ]
    )
    encode = {"tags": Hash(buckets=50), "city": Hash(buckets=50)}
    in_trainer, _ = StructuredDataset.create_dataloader(table, batch_size=4, encode=encode, num_workers=0)
    loader, _ = StructuredDataset.create_dataloader(
        table, batch_size=4, encode=encode, transform=features, num_workers=num_workers
    )
    for batch, sparse in zip(in_trainer, loader, strict=True):
        pooled = bags(sparse)
        assert torch.equal(pooled["city"], bags.embedding_bags["city"].weight[batch["city"]])
        tags = batch.ragged("tags")
        sums = [bags.embedding_bags["tags"].weight[tags[row]].sum(0) for row in range(len(tags))]
        assert torch.allclose(pooled["tags"], torch.stack(sums))


def test_it_stays_on_the_device_of_the_batch_without_waiting() -> None:
    batch = TensorBatch({"a": ragged([[1], [2, 3]], torch.int64), "b": torch.tensor([4, 5]), "w": torch.ones(2)})
    # A tensor without memory gives no value to whoever would wait for one.
    moved = to_keyed_jagged_tensor(batch.to("meta"), ["a", "b"])
    assert {moved.values().device.type, moved.lengths().device.type} == {"meta"}
    assert moved.length_per_key() == [3, 2]
    assert to_keyed_jagged_tensor(batch.to("meta"), ["b"], weights=["w"]).weights().is_meta


def test_one_key_is_not_copied() -> None:
    column = ragged([[1], [2, 3]], torch.int64)
    assert to_keyed_jagged_tensor({"a": column}, ["a"]).values().data_ptr() == column.values.data_ptr()


@pytest.mark.parametrize(
    ("keys", "weights", "error", "message"),
    [
        ([], None, ConfigError, "at least one"),
        (["a", "a"], None, ConfigError, "only once"),
        ("a", None, ConfigTypeError, r"pass a list of names, \['a'\]"),
        (["a"], "w", ConfigTypeError, r"pass a list of names, \['w'\]"),
        (["w"], None, ConfigTypeError, "'w' holds torch.float32"),
        (["text"], None, ConfigTypeError, "'text' is a list.*encode="),
        (["a", "short"], None, ConfigError, r"have \[2, 1\] rows"),
        (["a"], ["w", "w"], ConfigError, "one column for each key"),
        (["a"], ["w"], ConfigError, "not one weight for each value of 'a'"),
        (["a"], ["v"], ConfigError, "not one weight for each value of 'a'"),
        (["none"], None, ConfigError, "keys= names column 'none'.*It has a, v, w"),
        (["a"], ["none"], ConfigError, "weights= names column 'none'"),
    ],
)
def test_what_does_not_fit_is_refused(keys, weights, error, message) -> None:
    batch = {
        "a": ragged([[1], [2, 3]], torch.int64),
        "v": ragged([[0.5, 0.5], [0.5]], torch.float32),
        "w": torch.tensor([0.5, 0.5]),
        "text": ["x", "y"],
        "short": torch.tensor([1]),
    }
    with pytest.raises(error, match=message):
        to_keyed_jagged_tensor(batch, keys, weights=weights)
