"""States and plans of every released version of this major stay what they were, byte for byte."""

import json
from pathlib import Path

import pytest

from tests.compat.make import OPTIONS, STATES, make_default_state, make_inventory, make_plans, make_state
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.permute import Purpose, permutation
from torch_dataloader_utils._core.state import Identity, decode_state, merge_states
from torch_dataloader_utils.errors import CheckpointMismatchError
from torch_dataloader_utils.plan.planner import Planner

VERSIONS = sorted(path.parent for path in Path(__file__).parent.glob("*/plan.json"))
PLANS = make_plans()


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_states_still_load_and_continue(version, name):
    planner = Planner(inventory=make_inventory(), options=OPTIONS)
    identity = Identity(fingerprint=planner.identity.fingerprint, options=OPTIONS)
    state = json.loads((version / f"{name}.json").read_text())
    position, worker = decode_state(state, identity, Topology())
    assert (position, worker) == STATES[name]
    if position.segment.cursors is None:
        assert sum(work.program.num_rows for work in planner.plan(planner.counted(position)).worker_inputs(0)) > 0
    if worker is None:
        assert merge_states([state] * position.topology.num_ranks) == make_state(name)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_states_of_shuffled_chunks_continue_in_their_order(version):
    state = json.loads((version / "chunks.json").read_text())
    assert dict(state["options"]) == {"seed": 7, "shuffle": True}
    chunks, rows = (Planner(inventory=make_inventory(), options=passed(shuffle)) for shuffle in ("chunks", True))
    position, _ = decode_state(state, chunks.identity, Topology())
    assert position == STATES["state"][0]
    assert all(lane.is_plain.all() for program in chunks.plan(position).programs(0) for lane in program.lanes)
    with pytest.raises(CheckpointMismatchError, match="saved with shuffle='chunks', here True"):
        decode_state(state, rows.identity, Topology())


def passed(shuffle):
    """The options of a user who passes `shuffle` and a seed."""
    others = dict.fromkeys(("split_bytes", "shuffle_rows", "interleave", "lanes", "token_batches"))
    return PlanOptions.of(shuffle=shuffle, seed=7, **others)


KEPT_PLANS = [path for version in VERSIONS for path in sorted(version.glob("*.json")) if path.stem in PLANS]


@pytest.mark.parametrize("path", KEPT_PLANS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_plans_are_what_they_were(path):
    assert PLANS[path.stem] == json.loads(path.read_text())


def test_a_state_from_before_plans_changed_is_refused_and_says_what_to_do():
    old = json.loads((Path(__file__).parent / "0.1" / "state.json").read_text())
    identity = Identity(
        fingerprint=Planner(inventory=make_inventory(), options=OPTIONS).identity.fingerprint, options=OPTIONS
    )
    with pytest.raises(
        CheckpointMismatchError, match=r"version 1, this library reads versions 2 and 3\. Load it with the rel"
    ):
        decode_state(old, identity, Topology())


@pytest.mark.parametrize("name", [*STATES, "default-windows-state"])
def test_this_version_writes_what_is_kept(name):
    made = make_state(name) if name in STATES else make_default_state()
    assert made == json.loads((VERSIONS[-1] / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("purpose", "index", "expected"),
    [
        (Purpose.CHUNKS, 0, [1, 6, 8, 7, 2, 0, 3, 5, 4, 9]),
        (Purpose.WINDOW, 1000, [0, 2, 4, 5, 6, 3, 1, 7, 8, 9]),
    ],
)
def test_permutations_are_pinned(purpose, index, expected):
    assert permutation(10, seed=42, epoch=3, purpose=purpose, index=index).tolist() == expected
