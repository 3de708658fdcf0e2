"""Weights that move and caps: against exact integrals, bounds that are proved, and the same from any place."""

import json
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.blending.rule import exact_shares, exact_targets
from tests.blending.test_blend import SIZES, WEIGHTS, make, rows_of, source_of, tables  # noqa: F401
from tests.effort import effort
from torch_dataloader_utils import WeightSchedule
from torch_dataloader_utils._core.sealed_state import sealed
from torch_dataloader_utils.blending import picks
from torch_dataloader_utils.blending.picks import UNLIMITED, BlendOptions, BlendStart, blend_steps, count_steps
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, ConfigTypeError


@st.composite
def schedules(draw, least_weight=0):
    """Weights by step, of one to five sources that all have some."""
    num_sources = draw(st.integers(1, 5))
    weight = st.one_of(st.integers(least_weight, 6), st.floats(0.05, 20))
    rows = st.lists(weight, min_size=num_sources, max_size=num_sources).filter(any)
    nodes = {0: draw(rows), **draw(st.dictionaries(st.integers(1, 60), rows, max_size=4))}
    assume(all(map(any, zip(*nodes.values(), strict=True))))
    return nodes


def start_at(counts, left, steps=0, capped=()):
    counts = np.array(counts, dtype=np.int64)
    left = np.array([UNLIMITED if each is None else each for each in left], dtype=np.int64)
    return BlendStart(counts=counts, least_left=left, most_left=np.zeros_like(left), steps=steps, capped=[*capped])


def bound(nodes):
    """How far what a source gave can be from its integral: (more, less); see the design note."""
    num_sources = len(nodes[0])
    if any(0 in weights for weights in nodes.values()):
        return (num_sources + 1) / 2, (num_sources + 1) / 2
    return 1, sum(1 / number for number in range(1, num_sources)) or 0


@pytest.fixture(params=[7, 1 << 16])
def block_picks(request, monkeypatch):
    monkeypatch.setattr(picks, "_BLOCK_PICKS", request.param)


@pytest.mark.usefixtures("block_picks")
@given(nodes=schedules(), linear=st.booleans(), rows=st.integers(1, 5), stop=st.integers(1, 90))
@example(nodes={0: [0, 1], 5: [1, 0]}, linear=True, rows=1, stop=20)
@settings(max_examples=effort(40), deadline=None)
def test_every_pick_is_the_source_furthest_behind_its_integral_and_none_is_far_from_it(nodes, linear, rows, stop):
    schedule = WeightSchedule(nodes, linear=linear)
    options = BlendOptions(weights=schedule, per="sample", stop=stop, batch_rows=rows)
    order = np.concatenate(list(picks._blocks(options, start_at([0] * len(nodes[0]), [None] * len(nodes[0])))))
    assert len(order) == stop * rows
    targets = exact_targets(nodes, linear, rows, (), len(order))
    counts, (more, less) = [0] * len(nodes[0]), bound(nodes)
    for made, source in enumerate(order.tolist()):
        shares = exact_shares(nodes, linear, Fraction(2 * made + 1, 2 * rows))
        errors = [target - count for target, count in zip(targets[max(made, 1)], counts, strict=True)]
        assert shares[source] > 0
        assert errors[source] >= max(e for e, share in zip(errors, shares, strict=True) if share > 0) - Fraction(
            1, 10**9
        )
        counts[source] += 1
        behind = [target - count for target, count in zip(targets[made + 1], counts, strict=True)]
        assert -more - 1e-9 <= min(behind)
        assert max(behind) <= less + 1e-9


@given(weights=st.lists(st.floats(0.05, 20), min_size=1, max_size=5), rows=st.integers(1, 5))
@settings(max_examples=effort(20), deadline=None)
def test_weights_that_never_move_give_what_plain_ones_give(weights, rows):
    orders = [
        [amounts.tolist() for amounts in blend_steps(options, start_at([0] * len(weights), [None] * len(weights)))]
        for given in (tuple(weights), WeightSchedule({0: weights}), WeightSchedule({0: weights, 10**6: weights[::-1]}))
        for options in [BlendOptions(weights=given, per="sample", stop=200, batch_rows=rows)]
    ]
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.usefixtures("block_picks")
@given(data=st.data(), nodes=schedules(), linear=st.booleans(), rows=st.integers(1, 5), stop=st.integers(1, 60))
@settings(max_examples=effort(60), deadline=None)
def test_caps_hold_and_any_step_continues_the_same(data, nodes, linear, rows, stop):
    num_sources = len(nodes[0])
    left = data.draw(st.lists(st.none() | st.integers(1, 40), min_size=num_sources, max_size=num_sources))
    at_cap = data.draw(st.sampled_from(["stop", "renormalise"]))
    caps = tuple(None if each is None else 1 for each in left)
    schedule = WeightSchedule(nodes, linear=linear)
    options = BlendOptions(weights=schedule, per="sample", stop=stop, batch_rows=rows, max_epochs=caps, at_cap=at_cap)
    start = start_at([0] * num_sources, left)
    count = count_steps(options, start)
    steps = [each.tolist() for each in blend_steps(options, start)]
    assert count == len(steps)
    given = [sum(each) for each in zip(*steps, strict=True)] or [0] * num_sources
    assert all(limit is None or count <= limit for count, limit in zip(given, left, strict=True))
    for source, items in start.capped:
        assert left[source] is not None
        assert given[source] == left[source]
        assert items <= sum(given)
    before = data.draw(st.integers(0, len(steps)))
    done = [sum(each) for each in zip(*steps[:before], strict=True)] or [0] * num_sources
    if sum(done) < before * rows:
        return  # the last step was short: the epoch is over
    rest_left = [None if limit is None else limit - count for limit, count in zip(left, done, strict=True)]
    capped = [each for each in start.capped if each[1] <= sum(done)]
    rest = start_at(done, rest_left, before, capped)
    assert [each.tolist() for each in blend_steps(options, rest)] == steps[before:]
    assert rest.capped == start.capped


@given(nodes=schedules(least_weight=1), linear=st.booleans(), first=st.integers(1, 30), rows=st.integers(1, 4))
@settings(max_examples=effort(30), deadline=None)
def test_after_a_cap_the_others_have_the_proportions_of_their_weights(nodes, linear, first, rows):
    num_sources = len(nodes[0])
    left = [first, *[None] * (num_sources - 1)]
    options = BlendOptions(
        weights=WeightSchedule(nodes, linear=linear), per="sample", stop=100, batch_rows=rows,
        max_epochs=(1, *[None] * (num_sources - 1)), at_cap="renormalise",
    )  # fmt: skip
    start = start_at([0] * num_sources, left)
    steps = np.array(list(blend_steps(options, start)))
    targets = exact_targets(nodes, linear, rows, start.capped, int(steps.sum()))
    given = steps.sum(axis=0).tolist()
    apart = [float(target - count) for target, count in zip(targets[sum(given)], given, strict=True)]
    assert max(map(abs, apart)) <= (num_sources + 1) / 2 + 1e-9
    if num_sources == 1:
        assert sum(given) == first


def test_a_cap_that_is_an_error_names_source_and_step():
    options = BlendOptions(weights=(1, 3), per="batch", stop=100, batch_rows=1, max_epochs=(None, 2), at_cap="error")
    with pytest.raises(ConfigError, match=r"Source 1 of the blend has given max_epochs=2 passes by step 14,"):
        count_steps(options, start_at([0, 0], [None, 10]))
    enough = BlendOptions(weights=(1, 3), per="batch", stop=14, batch_rows=1, max_epochs=(None, 2), at_cap="error")
    assert count_steps(enough, start_at([0, 0], [None, 10])) == 14


@pytest.mark.parametrize("options", [{}, {"per": "sample", "batch_size": 2, "drop_last": True}])
def test_a_cap_that_is_an_error_comes_after_all_steps_before_it(tables, options):  # noqa: F811
    capped = {"stop": 1_000, "max_epochs": 1, **options}
    batches = [batch["row"].tolist() for batch in make(tables, **capped)]
    loader = make(tables, at_cap="error", **capped)
    received = []
    with pytest.raises(ConfigError, match="of the blend has given max_epochs=1 passes"):
        received.extend(batch["row"].tolist() for batch in loader)
    assert received == batches
    assert loader.epoch == 0
    resumed = make(tables, at_cap="error", **capped)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(ConfigError, match="of the blend has given max_epochs=1 passes"):
        next(iter(resumed))


MOVING = WeightSchedule({0: [6, 2, 0], 6: [1, 1, 1], 12: [0, 1, 3]}, linear=True)


@pytest.mark.slow
@given(
    data=st.data(),
    per=st.sampled_from(["batch", "sample"]),
    num_ranks=st.integers(1, 2),
    at_cap=st.sampled_from(["stop", "renormalise"]),
    max_epochs=st.sampled_from([None, 1, 2, (None, 2, 1), (1, None, 2)]),
)
@settings(max_examples=effort(15), deadline=None)
def test_loaders_continue_at_any_step_of_moving_weights_and_caps(tables, data, per, num_ranks, at_cap, max_epochs):  # noqa: F811
    options = {"per": per, "stop": 25, "num_ranks": num_ranks, "weights": MOVING, "max_epochs": max_epochs}
    if per == "sample":
        options["batch_size"] = data.draw(st.integers(1, 6))
    if max_epochs is not None:
        options["at_cap"] = at_cap
    step, states, seen = None, [], [0] * sum(SIZES)
    places = {
        row: place
        for place, row in enumerate(row for k, n in enumerate(SIZES) for row in range(1000 * k, 1000 * k + n))
    }
    for rank in range(num_ranks):
        loader = make(tables, rank=rank, **options)
        whole = rows_of(loader)
        for row in (row for batch in whole for row in batch):
            seen[places[row]] += 1
        step = data.draw(st.integers(0, len(whole) - 1)) if step is None else step
        loader.set_epoch(0)
        batches = iter(loader)
        received = [next(batches)["row"].tolist() for _ in range(step)]
        states.append(json.dumps(loader.state_dict()))
        batches.close()
        resumed = make(tables, rank=rank, **options)
        resumed.load_state_dict(json.loads(states[0]))
        assert len(resumed) == len(whole) == len(loader)
        assert received + rows_of(resumed) == whole
    assert len(set(states)) == 1
    caps = max_epochs if isinstance(max_epochs, tuple) else (max_epochs,) * 3
    ends = [0, *accumulate(SIZES)]
    for source, cap in enumerate(caps):
        assert cap is None or max(seen[ends[source] : ends[source + 1]]) <= cap


def test_the_future_of_a_state_may_change_and_its_past_may_not(tables):  # noqa: F811
    old = make(tables, stop=20)
    batches = iter(old)
    received = [source_of(next(batches)["row"][0].item()) for _ in range(9)]
    state = old.state_dict()
    moved = WeightSchedule({0: [each * 10 for each in WEIGHTS], 9: [0, 0, 1]})
    resumed = make(tables, stop=20, weights=moved)
    resumed.load_state_dict(state)
    assert {source_of(batch[0]) for batch in rows_of(resumed)} == {2}
    assert set(received) == {0, 1, 2}
    changed = WeightSchedule({0: WEIGHTS, 8: [1, 1, 2], 9: [0, 0, 1]})
    says = r"stands at step 9, .* from step 8 to 9 source 0 had a share of 0.588235, here 0.25"
    with pytest.raises(CheckpointMismatchError, match=says):
        make(tables, stop=20, weights=changed).load_state_dict(state)


def test_a_line_that_is_left_half_way_has_the_same_past(tables):  # noqa: F811
    line = WeightSchedule({0: [4, 4, 0], 8: [0, 4, 4]}, linear=True)
    loader = make(tables, stop=20, weights=line)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    make(
        tables, stop=20, weights=WeightSchedule({0: [1, 1, 0], 4: [1, 2, 1], 5: [0, 0, 1]}, linear=True)
    ).load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match="from step 0 to 4 source 0"):
        make(tables, stop=20, weights=WeightSchedule({0: [1, 1, 0], 4: [2, 2, 1]}, linear=True)).load_state_dict(state)


@pytest.mark.parametrize("capped", [5, [1], [[0]], [[7, 1]], [[0, 10**6]], [[0, -1]], [[0, 1], [0, 2]], None])
def test_caps_that_no_blend_writes_are_refused(tables, capped):  # noqa: F811
    options = {"stop": 20, "max_epochs": 1, "at_cap": "renormalise"}
    state = make(tables, **options).state_dict()
    state["capped"] = capped
    del state["checksum"]
    if capped is None:
        del state["capped"]
    with pytest.raises(CheckpointMismatchError, match="says capped="):
        make(tables, **options).load_state_dict(sealed(state))


@pytest.mark.parametrize(
    "saved",
    [None, 5, {}, {"steps": [0], "weights": [], "linear": False}, {"steps": 1, "weights": 2, "linear": 3}, [1, -1, 1]],
)
def test_weights_of_a_state_that_are_none_are_refused(tables, saved):  # noqa: F811
    state = make(tables).state_dict()
    state["options"]["weights"] = saved
    del state["checksum"]
    with pytest.raises(CheckpointMismatchError, match="does not fit"):
        make(tables).load_state_dict(sealed(state))


def test_steps_by_tokens_are_whole_steps():
    by_tokens = WeightSchedule({0: [1, 1], 1_000: [1, 2], 2_001: [1, 3]}, step_tokens=100)
    assert by_tokens == WeightSchedule({0: [1, 1], 10: [1, 2], 21: [1, 3]})


def test_schedules_that_make_no_sense_are_refused(tables):  # noqa: F811
    for weights in ([1, 2], {0: "ab"}, {0: [1], 1.5: [2]}):
        with pytest.raises(ConfigTypeError):
            WeightSchedule(weights)
    for weights in ({}, {5: [1]}, {0: [1, 2], 1: [1]}, {0: [0, 0]}, {0: [-1, 2]}, {0: [1, 0]}, {0: [1], 2**53: [2]}):
        with pytest.raises(ConfigError):
            WeightSchedule(weights)
    with pytest.raises(ConfigError, match="for steps"):
        WeightSchedule({0: [1], 10: [2], 20: [3]}, step_tokens=100)
    with pytest.raises(ConfigError, match="3 sources and 1 weights"):
        make(tables, weights=WeightSchedule({0: [1]}))
    with pytest.raises(ConfigError, match="max_epochs= with stop"):
        make(tables, max_epochs=2)
    with pytest.raises(ConfigError, match="without max_epochs"):
        make(tables, stop=3, at_cap="error")
    with pytest.raises(ConfigError, match="might never give"):
        make(tables, stop="all_exhausted", weights=MOVING)
    for wrong in ([1, 2], [0, 1, 1], 0):
        with pytest.raises(ConfigError):
            make(tables, stop=3, max_epochs=wrong)
    with pytest.raises(ConfigTypeError):
        make(tables, stop=3, max_epochs="all")
