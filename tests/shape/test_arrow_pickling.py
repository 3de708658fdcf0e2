"""Record batches from worker processes: those that threads give, and no other rows behind them."""

import copyreg
import functools
import pickle
from multiprocessing.reduction import ForkingPickler
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from torch_dataloader_utils import RowDataset, StructuredDataset
from torch_dataloader_utils.stream.transport.ray_actor import pickle_as_processes_do

ROWS = 20_000


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "part-0.parquet"
    columns = {
        "row": range(ROWS),
        "name": [f"row-{row}" for row in range(ROWS)],
        "point": pa.array([[row, None] for row in range(ROWS)], pa.list_(pa.float32(), 2)),
        "tags": pa.array([[("a", row)] for row in range(ROWS)], pa.map_(pa.string(), pa.int64(), keys_sorted=True)),
    }
    pq.write_table(pa.table(columns), path)
    return path


def load(path, num_workers, **options):
    options = {"batch_size": 100, "output_format": "arrow", "num_workers": num_workers, **options}
    return StructuredDataset.create_dataloader(path, **options)


def as_text(batches):
    return [(str(batch.schema), batch.to_pylist()) for batch in batches]


@pytest.mark.cases(1)
@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_worker_processes_give_the_types_that_threads_give(table, method):
    assert as_text(load(table, 1, multiprocessing_context=method)[0]) == as_text(load(table, 0)[0])


@pytest.mark.processes
def test_a_batch_from_a_worker_holds_its_own_rows(table):
    batches = [next(iter(load(table, 1)[0])), next(iter(DataLoader(load(table, 1)[1], batch_size=None, num_workers=1)))]
    assert all(batch.get_total_buffer_size() < 2 * batch.nbytes for batch in batches)


@pytest.mark.processes
def test_a_row_from_a_worker_holds_itself(table):
    rows = RowDataset(table, output_format="arrow")
    (row, *_) = next(iter(DataLoader(rows, batch_size=100, num_workers=1, collate_fn=list)))
    assert row.to_pylist() == rows[0].to_pylist()
    assert row.get_total_buffer_size() < 1_000


def as_tables(batch):
    return {"table": pa.table(batch), "names": batch["name"], "all": pa.chunked_array([batch["row"], batch["row"]])}


@pytest.mark.processes
def test_tables_and_arrays_of_a_transform_hold_their_own_rows(table):
    given = next(iter(load(table, 1, transform=as_tables)[0]))
    assert all(each.get_total_buffer_size() < 2 * each.nbytes for each in given.values())
    wanted = next(iter(load(table, 0, transform=as_tables)[0]))
    assert given == wanted
    assert str(given["table"].schema) == str(wanted["table"].schema)


POINT = pa.list_(pa.field("element", pa.float32(), nullable=False, metadata={"unit": "m"}), 2)
TAGS = pa.map_(pa.field("tag", pa.string(), nullable=False), pa.field("count", pa.int64()), keys_sorted=True)


@pytest.mark.parametrize("kind", [POINT, TAGS, pa.struct([("points", pa.list_(POINT)), ("tags", TAGS)])], ids=str)
def test_types_arrive_with_the_names_inside_of_them(kind):
    arrived = pickle.loads(ForkingPickler.dumps(pa.schema([pa.field("x", kind)])))
    assert arrived.equals(pa.schema([pa.field("x", kind)]), check_metadata=True)
    assert str(arrived) == str(pa.schema([pa.field("x", kind)]))


class Celsius(pa.ExtensionType):
    """Registered nowhere."""

    def __init__(self):
        super().__init__(pa.float64(), "celsius")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()


def nested(levels):
    return functools.reduce(lambda kind, _: pa.list_(kind), range(levels), pa.int32())


@pytest.mark.parametrize(
    "column",
    [
        pa.ExtensionArray.from_storage(Celsius(), pa.array([20.5, None])),
        pa.DictionaryArray.from_arrays(pa.array([1, 0]), pa.array([b"a" * 16, b"b" * 16], pa.uuid())),
        pa.nulls(2, nested(70)),
    ],
    ids=["not registered", "categories", "deep"],
)
def test_columns_that_a_stream_cannot_have_stay_what_they_are(column):
    for rows in pa.record_batch({"x": column}), pa.table({"x": column}), column:
        assert pickle.loads(ForkingPickler.dumps(rows)).equals(rows)


def test_actors_of_ray_pickle_rows_alone_too():
    rows = pa.record_batch({"x": pa.array(range(ROWS))})
    with patch.dict(copyreg.dispatch_table):
        pickle_as_processes_do()
        sent = pickle.dumps(rows.slice(7, 2))
    assert pickle.loads(sent).equals(rows.slice(7, 2))
    assert len(sent) < 1_000
