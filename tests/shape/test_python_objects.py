"""Values that Arrow has and Python has not."""

import pyarrow as pa
import pytest

from torch_dataloader_utils.errors import SchemaError
from torch_dataloader_utils.shape.shapers import make_shaper

END_OF_TIME = 253402300799000000  # 9999-12-31 23:59:59 in UTC is the year 10000 in Berlin

COLUMNS = {
    "after 9999": pa.array([END_OF_TIME], pa.timestamp("us", "Europe/Berlin")),
    "unknown zone": pa.array([0], pa.timestamp("us", "Nowhere/City")),
    "a field twice": pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["k", "k"]),
    "far day": pa.array([2**31 - 1], pa.date32()),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_the_column_is_named(name):
    rows = pa.record_batch({name: COLUMNS[name]})
    with pytest.raises(SchemaError, match=f"column '{name}' of type .* Python objects cannot hold"):
        make_shaper("dict", rows.schema).block([rows]).to_batch()


def test_inside_of_a_column_of_objects_the_type_is_named():
    rows = pa.record_batch({"x": pa.StructArray.from_arrays([COLUMNS["after 9999"]], ["t"])})
    with pytest.raises(SchemaError, match=r"a column of type struct<t: timestamp.* Python objects cannot hold"):
        make_shaper("torch", rows.schema).block([rows]).to_batch()
