"""Whole numbers in options: numpy's are taken and kept as Python's, everything else is refused by name."""

import json
from typing import Any

import numpy as np
import pytest

from torch_dataloader_utils import RoundRobinSplitStrategy, SizeBalancedSplitStrategy, pack_tokens
from torch_dataloader_utils._core.arguments import parse_bytes
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Position, Segment
from torch_dataloader_utils._core.state import Identity, decode_state, encode_state
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, InternalError
from torch_dataloader_utils.splits import TargetSizeSplitStrategy


def test_options_of_numpy_integers_give_the_state_and_fingerprint_of_python_ones() -> None:
    given = PlanOptions(seed=np.int64(7), split_rows=np.int32(5), stop_row=np.uint8(9))
    plain = PlanOptions(seed=7, split_rows=5, stop_row=9)
    assert (given, repr(given)) == (plain, repr(plain))
    topology = Topology(num_ranks=np.int64(2), batch_size=np.int64(4))
    position = Position(epoch=1, segment=Segment(topology=topology, steps=3))
    state = json.loads(json.dumps(encode_state(Identity(fingerprint="f", options=given), position)))
    saved = Position(epoch=1, segment=Segment(topology=Topology(num_ranks=2, batch_size=4), steps=3))
    assert decode_state(state, Identity(fingerprint="f", options=plain), topology) == (saved.under(topology), None)
    packing = pack_tokens("tokens", np.int64(8), eod=np.uint16(3))
    assert json.loads(packing.describe())["eod"] == 3
    assert parse_bytes("size", np.int64(5)) == 5


@pytest.mark.parametrize(("steps", "rank"), [(None, 1), ((None,), 1), ((2, None), 1)])
def test_steps_that_only_a_plan_can_count_are_not_guessed(steps: Any, rank: int) -> None:
    with pytest.raises(InternalError, match=f"steps of rank {rank} were asked for before they were counted"):
        Segment(topology=Topology(), steps=steps).steps_of(rank)


@pytest.mark.parametrize("value", [1.5, "7", True])
@pytest.mark.parametrize("name", ["seed", "split_rows", "first_row"])
def test_what_is_no_whole_number_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigTypeError, match=f"{name}={value!r}: pass a whole number"):
        PlanOptions(**{name: value})


def test_none_stays_where_it_is_a_value_and_is_refused_elsewhere() -> None:
    assert PlanOptions(split_rows=None, stop_row=None) == PlanOptions()
    for name in ("seed", "first_row", "interleave"):
        with pytest.raises(ConfigTypeError, match=f"{name}=None"):
            PlanOptions(**{name: None})
    with pytest.raises(ConfigTypeError, match="num_ranks=None"):
        Topology(num_ranks=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigTypeError, match="sequence_length=None"):
        pack_tokens("tokens", None)  # type: ignore[arg-type]


def test_numbers_below_the_least_are_refused_and_seeds_have_none() -> None:
    with pytest.raises(ConfigError, match="batch_size=0: pass a whole number of at least 1"):
        Topology(batch_size=0)
    with pytest.raises(ConfigError, match="pad_id=-1: pass a whole number of at least 0"):
        pack_tokens("tokens", 8, pad_id=-1)
    assert PlanOptions(seed=-5).seed == -5


@pytest.mark.parametrize("text", [None, [], 1.5, True])
def test_a_size_of_another_type_is_refused_by_name(text: Any) -> None:
    with pytest.raises(ConfigTypeError, match=r"cache_bytes=.* is no number of bytes"):
        parse_bytes("cache_bytes", text)


@pytest.mark.parametrize("text", ["", "x", "-1MiB", "1e3MB", "nan", "1 MX"])
def test_a_text_that_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=f"cache_bytes={text!r} is no number of bytes"):
        parse_bytes("cache_bytes", text)


def test_sizes_are_exact_and_held_to_int64() -> None:
    assert [parse_bytes("size", text) for text in ("1.5KiB", "0.57 KB", str(2**63 - 1))] == [1536, 570, 2**63 - 1]
    with pytest.raises(ConfigError, match="that int64 holds"):
        parse_bytes("size", "9" * 400 + "TB")
    with pytest.raises(ConfigError, match="size=0: pass 1 or more bytes"):
        parse_bytes("size", "0", least=1)


@pytest.mark.parametrize(
    ("strategy", "name", "value", "error"),
    [
        (TargetSizeSplitStrategy, "target_bytes", "x", ConfigTypeError),
        (TargetSizeSplitStrategy, "target_bytes", -5, ConfigError),
        (TargetSizeSplitStrategy, "target_rows", 0, ConfigError),
        (TargetSizeSplitStrategy, "shuffle", "no", ConfigTypeError),
        (RoundRobinSplitStrategy, "shuffle", "no", ConfigTypeError),
        (RoundRobinSplitStrategy, "seed", "x", ConfigTypeError),
        (SizeBalancedSplitStrategy, "seed", 1.5, ConfigTypeError),
    ],
)
def test_split_strategies_refuse_by_the_names_of_their_own_options(
    strategy: Any, name: str, value: Any, error: type[ConfigError]
) -> None:
    with pytest.raises(error, match=f"^{name}={value!r}: pass"):
        strategy(**{name: value})


def test_split_strategies_keep_plain_values() -> None:
    given = TargetSizeSplitStrategy(np.int64(5), np.int32(2), np.True_, np.uint8(7))
    assert repr(given) == repr(TargetSizeSplitStrategy(5, 2, True, 7))
    assert RoundRobinSplitStrategy(seed=2**70).seed == 2**70
