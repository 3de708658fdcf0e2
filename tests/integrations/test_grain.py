"""Grain's IterDataset over a data set: rows, states on other numbers of ranks, mixing and prefetch on top."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.integrations.jobs import NUM_ROWS, write_rows
from torch_dataloader_utils import RowDataset, StructuredDataset

pytestmark = pytest.mark.full

grain = pytest.importorskip("grain", reason="grain is not installed")

from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, ConfigTypeError  # noqa: E402
from torch_dataloader_utils.integrations.grain import for_grain  # noqa: E402


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("grain") / "table")


def dataset(table: Path, num_ranks: int = 1, rank: int = 0, batch_size: int = 8) -> StructuredDataset[Any]:
    return StructuredDataset(
        table,
        batch_size=batch_size,
        shuffle=True,
        split_rows=9,
        output_format="numpy",
        num_ranks=num_ranks,
        rank=rank,
    )


def rows_of(batches: Iterator[Any]) -> list[int]:
    return [row for batch in batches for row in batch["row"].tolist()]


def test_batches_are_plain_dicts_and_epochs_differ(table: Path) -> None:
    batches = list(for_grain(dataset(table), num_epochs=2))
    assert {type(batch) for batch in batches} == {dict}
    rows = rows_of(iter(batches))
    first, second = rows[:NUM_ROWS], rows[NUM_ROWS:]
    assert sorted(first) == sorted(second) == list(range(NUM_ROWS))
    assert first != second


def test_without_a_number_of_epochs_it_goes_on(table: Path) -> None:
    batches = iter(for_grain(dataset(table)))
    rows = rows_of(next(batches) for _ in range(50))
    assert len(rows) > 3 * NUM_ROWS


def test_iterators_have_positions_of_their_own(table: Path) -> None:
    batches = for_grain(dataset(table), num_epochs=1)
    one, other = iter(batches), iter(batches)
    first = next(one)["row"].tolist()
    assert next(other)["row"].tolist() == first


@given(st.data())
def test_a_state_goes_on_with_any_number_of_ranks_and_any_batch_size(table: Path, data: st.DataObject) -> None:
    ranks = [iter(for_grain(dataset(table, 2, rank), num_epochs=1)) for rank in range(2)]
    steps = data.draw(st.integers(0, 7), label="steps")
    rows = [row for _ in range(steps) for rank in ranks for row in next(rank)["row"].tolist()]
    states = [json.loads(json.dumps(rank.get_state())) for rank in ranks]
    assert states[0] == states[1]
    num_ranks, batch_size = data.draw(st.integers(1, 3), label="ranks"), data.draw(st.integers(2, 20), label="batch")
    for rank in range(num_ranks):
        rest = iter(for_grain(dataset(table, num_ranks, rank, batch_size), num_epochs=1))
        rest.set_state(states[0])
        rows += rows_of(rest)
    assert sorted(rows) == list(range(NUM_ROWS))


@given(steps=st.integers(0, 30))
def test_prefetch_and_mixing_on_top_resume(table: Path, steps: int) -> None:
    def batches() -> Any:
        mixed = grain.IterDataset.mix(
            [for_grain(dataset(table)), for_grain(dataset(table, batch_size=3))], weights=[0.5, 0.5]
        )
        ahead = grain.experimental.ThreadPrefetchIterDataset(mixed.map(rows_of_batch), prefetch_buffer_size=3)
        return iter(ahead)

    one, other = batches(), batches()
    for _ in range(steps):
        next(one)
    other.set_state(one.get_state())
    assert [next(one) for _ in range(20)] == [next(other) for _ in range(20)]
    one.close()
    other.close()


def rows_of_batch(batch: dict[str, Any]) -> list[int]:
    return batch["row"].tolist()  # type: ignore[no-any-return]


def test_worker_processes_of_grain_read_shards_and_resume(table: Path) -> None:
    def batches() -> Any:
        options = grain.MultiprocessingOptions(num_workers=2)
        return iter(for_grain(dataset(table), num_epochs=1).mp_prefetch(options))

    one, other = batches(), batches()
    rows = [row for _ in range(5) for row in next(one)["row"].tolist()]
    other.set_state(one.get_state())
    rest = rows_of(one)
    assert rows_of(other) == rest
    assert sorted(rows + rest) == list(range(NUM_ROWS))
    one.close()
    other.close()


def test_states_of_other_data_are_refused(table: Path, tmp_path: Path) -> None:
    state = iter(for_grain(dataset(write_rows(tmp_path / "other")))).get_state()
    with pytest.raises(CheckpointMismatchError):
        iter(for_grain(dataset(table))).set_state(state)


def test_rows_by_number_are_a_source_of_grain(table: Path) -> None:
    rows = grain.MapDataset.source(RowDataset(table, output_format="numpy")).shuffle(seed=1)
    batches = rows.to_iter_dataset().batch(16)
    assert sorted(np.concatenate([batch["row"] for batch in batches]).tolist()) == list(range(NUM_ROWS))


def test_wrong_arguments_say_what_to_pass(table: Path) -> None:
    with pytest.raises(ConfigTypeError, match=r"MapDataset\.source"):
        for_grain(RowDataset(table))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="num_epochs"):
        for_grain(dataset(table), num_epochs=0)
