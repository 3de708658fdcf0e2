"""Which source each row came from: in the batch, and counted by source in the metrics; against the rows themselves."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.blending.test_blend import make, source_of, tables  # noqa: F401
from tests.effort import effort
from torch_dataloader_utils import StructuredDataset, blend, pack_tokens
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.shape.tensor_batch import TensorBatch

KINDS = {"torch": torch.Tensor, "numpy": np.ndarray, "arrow": pa.Array}


def listed(column):
    return column.to_pylist() if isinstance(column, pa.Array) else column.tolist()


@pytest.mark.slow
@given(
    data=st.data(),
    per=st.sampled_from(["batch", "sample"]),
    output_format=st.sampled_from([*KINDS]),
    num_ranks=st.integers(1, 2),
    stop=st.sampled_from(["first_exhausted", "all_exhausted", 30]),
)
@settings(max_examples=effort(25), deadline=None)
def test_every_row_says_its_source_and_is_counted_there(tables, data, per, output_format, num_ranks, stop):  # noqa: F811
    options = {"per": per, "stop": stop, "num_ranks": num_ranks, "rank": num_ranks - 1}
    options["source_options"] = {"output_format": output_format}
    if per == "sample":
        options["batch_size"] = data.draw(st.integers(1, 9))
    plain, named = make(tables, **options), make(tables, source_column="from", **options)
    epochs = data.draw(st.integers(1, 2))
    counts = Counter()
    for epoch in range(epochs):
        plain.set_epoch(epoch)
        named.set_epoch(epoch)
        expected = [listed(batch["row"]) for batch in plain]
        received = []
        for batch in named:
            assert isinstance(batch["from"], KINDS[output_format])
            received.append(listed(batch["row"]))
            assert listed(batch["from"]) == [source_of(row) for row in received[-1]]
            counts.update(listed(batch["from"]))
            assert [each.rows for each in named.metrics()] == [counts[source] for source in range(3)]
        assert received == expected
    assert [each.rows for each in plain.metrics()] == [each.rows for each in named.metrics()]
    assert [each.tokens for each in named.metrics()] == [0, 0, 0]


def test_a_state_continues_with_or_without_the_column(tables):  # noqa: F811
    named = make(tables, per="sample", stop=12, source_column="from")
    batches = iter(named)
    for _ in range(5):
        next(batches)
    resumed = make(tables, per="sample", stop=12)
    resumed.load_state_dict(named.state_dict())
    rest = [batch["row"].tolist() for batch in batches]
    assert [batch["row"].tolist() for batch in resumed] == rest
    # What a blend counts begins with it, whatever state it was given.
    assert sum(each.rows for each in resumed.metrics()) == sum(map(len, rest))


@pytest.mark.parametrize("per", ["batch", "sample"])
def test_packed_samples_and_stacks_say_their_source_and_tokens_are_counted(tmp_path, per):
    loaders = []
    for source in range(2):
        lists = [[10 * source + 1] * (3 + row % 5) for row in range(40)]
        pq.write_table(pa.table({"tokens": lists}), tmp_path / f"{source}.parquet")
        loaders.append(
            StructuredDataset.create_dataloader(
                str(tmp_path / f"{source}.parquet"), batch_size=3, num_workers=0, pack=pack_tokens("tokens", 8)
            )[0]
        )
    loader = blend(loaders, [2, 1], per=per, stop=8, source_column="source")
    counts = Counter()
    for batch in loader:
        assert type(batch) is TensorBatch
        assert batch["source"].tolist() == (batch["tokens"].max(dim=1).values // 10).tolist()
        counts.update(batch["source"].tolist())
    assert [each.tokens for each in loader.metrics()] == [8 * counts[0], 8 * counts[1]]
    assert all(each.tokens_per_second > 0 for each in loader.metrics())


def test_columns_of_a_stack_keep_their_rows(tables):  # noqa: F811
    options = {"output_format": "torch", "stack": {"matrix": ["row"]}}
    for batch in make(tables, per="sample", stop=5, source_options=options, source_column="source"):
        assert batch["source"].tolist() == [source_of(row) for row in batch["matrix"][:, 0].tolist()]


def test_batches_that_have_no_columns_and_names_that_are_taken_are_refused(tables):  # noqa: F811
    with pytest.raises(ConfigTypeError, match="source_column is the name of a column; got 5"):
        make(tables, source_column=5)
    with pytest.raises(ConfigError, match="source_column is the name of a column; got an empty one"):
        make(tables, source_column="")
    for per in ("batch", "sample"):
        with pytest.raises(ConfigError, match="a column of this name already"):
            next(iter(make(tables, per=per, source_column="row")))
    options = {"transform": lambda batch: batch["row"]}
    with pytest.raises(ConfigTypeError, match="a source gives Tensor batches"):
        next(iter(make(tables, source_options=options, source_column="source")))
