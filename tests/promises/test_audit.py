"""An audit of the rows that a job gave: every job passes it, whatever stops and goes on elsewhere; no fault does."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.cli.shell import tdu
from tests.effort import effort
from tests.promises.sources import SOURCES
from tests.promises.test_every_row_once import PACKS, TOKEN_BATCHES, orders, topologies
from torch_dataloader_utils import Lanes, blend, merge_states
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._observe.audit_file import AuditFile, read_audit
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils.cli.job_audit import audit_job
from torch_dataloader_utils.errors import ConfigError, CorruptFileError
from torch_dataloader_utils.plan.epoch_plan import EpochPlan
from torch_dataloader_utils.stream.epoch_pass import PassSetup, epoch_pass
from torch_dataloader_utils.stream.lane import LaneReader, LaneWindows
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.origins import Origins
from torch_dataloader_utils.stream.progress import Pass
from torch_dataloader_utils.stream.worker import WorkerStream

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* come a second time:UserWarning"),
    pytest.mark.filterwarnings("ignore:Ranks take different numbers of steps:UserWarning"),
    pytest.mark.filterwarnings("ignore:The epoch has no steps:UserWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

ROOT = Path(__file__).parents[2]
COUNTED = [kind for kind in SOURCES if kind != "uncounted"]


class InTurn:
    """A `BatchSource` of several workers in this thread, one batch of each in turn."""

    def __init__(self, dataset, work):
        self.num_batches, self.worker, self.cursor, self.origin = work.num_batches, work.first_worker, (0, 0), None
        decode = replace(dataset.stages.decode, threads=1)
        self._streams = [WorkerStream(each, dataset.pipeline, decode) for each in work.inputs]
        self.batches = self._in_turn()

    def _in_turn(self):
        batches = [iter(stream) for stream in self._streams]
        try:
            for number in range(self.worker, self.worker + self.num_batches):
                self.worker = number % len(batches)
                batch = next(batches[self.worker])
                self.origin = self._streams[self.worker].origins.take()
                yield batch
        finally:
            for each in batches:
                each.close()


def batches_of(dataset) -> Iterator:
    return epoch_pass(
        dataset,
        lambda: PassSetup(
            topology=dataset.topology,
            open_source=lambda work: InTurn(dataset, work),
            num_processes=0,
            meter=LoaderMeter(),
        ),
    )


def open_ranks(source, folder, topology, options, state):
    found = []
    for rank in range(topology.num_ranks):
        dataset = source.open(
            audit=folder,
            num_ranks=topology.num_ranks,
            rank=rank,
            num_workers=topology.num_workers,
            batch_size=topology.batch_size,
            drop_last=topology.drop_last,
            **options,
            **source.options,
        )
        if state is not None:
            dataset.load_state_dict(state)
        found.append(dataset)
    return found


def run_link(source, folder, topology, options, state, stop, lost):
    """Take `stop` steps on each rank, save a state, take `lost` more steps; stop=None goes to the end of the epoch."""
    states, passes = [], []
    for dataset in open_ranks(source, folder, topology, options, state):
        passes.append(batches_of(dataset))
        for _ in islice(passes[-1], stop):
            pass
        states.append(dataset.state_dict())
    for each in passes:
        for _ in islice(each, lost):
            pass
        each.close()
    return json.loads(json.dumps(merge_states(states)))


@pytest.mark.slow
@given(
    kind=st.sampled_from(COUNTED),
    files=st.lists(st.lists(st.integers(0, 40), max_size=4), max_size=4),
    options=orders(),
    chain=st.lists(st.tuples(topologies, st.integers(0, 6), st.integers(0, 2)), max_size=4),
    last=topologies,
)
@settings(max_examples=effort(40), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_job_passes_its_audit_whatever_stops_and_goes_on_elsewhere(kind, files, options, chain, last):
    assume(sum(map(sum, files)))
    with TemporaryDirectory() as folder:
        (Path(folder) / "data").mkdir()
        source = SOURCES[kind](Path(folder) / "data", files)
        assume(source.rows)
        if kind in TOKEN_BATCHES:
            options["shuffle_rows"] = options["shuffle_rows"] or 16
            options = {
                name: value for name, value in options.items() if name not in ("rank_sharding", "split_strategy")
            }
        state, epoch, audits = None, 0, f"{folder}/audits"
        for topology, stop, lost in [*chain, (last, None, 0)]:
            if epoch == 0:
                state = run_link(source, audits, topology, options, state, stop, lost)
                epoch = state["epoch"]
        audit = audit_job(Path(audits))
        assert audit.is_exact, audit
        (first,) = (each for each in audit.epochs if each.epoch == 0)
        assert first.state == "complete"
        assert first.rows == len(source.rows) if kind not in PACKS else first.rows
        assert (first.rows == first.once + first.never) == (first.repeated == 0)


TOPOLOGY = Topology(num_ranks=2, num_workers=2, batch_size=8, drop_last=False)
OTHER = Topology(num_ranks=3, num_workers=1, batch_size=7, drop_last=False)


def run_two_links(tmp_path, options, lost=0):
    (tmp_path / "data").mkdir()
    source = SOURCES["parquet"](tmp_path / "data", [[20, 20, 20, 20], [20, 20, 20]])
    state = run_link(source, tmp_path / "audits", TOPOLOGY, options, None, 3, lost)
    run_link(source, tmp_path / "audits", OTHER, options, state, None, 0)
    return audit_job(tmp_path / "audits")


def rows_given_again(patch):
    """Each lane goes back by a row after its first rows, so that its last row never comes."""
    advance = LaneReader._advance

    def late(lane, rows):
        advance(lane, rows - 1 if lane.cursor == (0, 0) and rows > 1 else rows)

    patch.setattr(LaneReader, "_advance", late)
    patch.setattr(LaneReader, "whole_batch", lambda *_, **__: None)  # batches that are cut ahead do not look back


def swapped_row_groups(patch):
    """The second row group of each worker is read in place of the first."""
    task = Inventory.task

    def swapped(inventory, group, *rest):
        other = task(inventory, 1, *rest) if group == 0 and inventory.num_groups > 1 else None
        return task(inventory, group, *rest) if other is None else other

    patch.setattr(Inventory, "task", swapped)


def same_rank(patch):
    """Every rank reads the rows of rank 0."""
    inputs = EpochPlan.worker_inputs
    patch.setattr(EpochPlan, "worker_inputs", lambda plan, _: inputs(plan, 0))


def reversed_windows(patch):
    """Windows come in another order, so a stop inside a window loses and repeats rows."""
    order = LaneWindows._order
    patch.setattr(LaneWindows, "_order", lambda *args: order(*args)[::-1])


def skipped_batch(patch):
    """The state counts one step too many."""
    count = Pass.count
    patch.setattr(Pass, "count", lambda of: (count(of), count(of)) if of._steps == 1 else count(of))


def changed_origins(change):
    def patched(patch):
        take = Origins.take

        def changed(origins):
            origin = take(origins)
            return origin._replace(spans=change(origin.spans))

        patch.setattr(Origins, "take", changed)

    return patched


FAULTS = {
    "rows given again": ({"split_rows": 100}, rows_given_again),
    "swapped row groups": ({}, swapped_row_groups),
    "same rank": ({}, same_rank),
    "reversed windows": ({"shuffle_rows": 40}, reversed_windows),
    "skipped batch": ({}, skipped_batch),
    "dropped rows": ({}, changed_origins(lambda spans: spans[:-1])),
    "repeated rows": ({}, changed_origins(lambda spans: (*spans, spans[0]))),
    "other rows": ({}, changed_origins(lambda spans: ((spans[0][0], 0, spans[0][2]), *spans[1:]))),
    "rows of no file": ({}, changed_origins(lambda spans: ((spans[0][0], 10_000, spans[0][2]), *spans[1:]))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_audit_notices_a_loader_that_drops_repeats_or_swaps_rows(fault, tmp_path, monkeypatch):
    options, patch = FAULTS[fault]
    patch(monkeypatch)
    assert not run_two_links(tmp_path, options).is_exact


def swapped_ranks(inputs, plan, rank):
    """Each rank reads the rows of another rank."""
    return inputs(plan, plan.topology.num_ranks - 1 - rank)


def reversed_units(inputs, plan, rank):
    """Each worker reads its rows from the last unit to the first."""

    def turned(work):
        lanes = tuple(units.take(slice(None, None, -1)) for units in work.program.lanes)
        return replace(work, program=replace(work.program, lanes=lanes))

    return tuple(map(turned, inputs(plan, rank)))


@pytest.mark.parametrize("change", [swapped_ranks, reversed_units])
@pytest.mark.parametrize(
    "options",
    [{"split_rows": 16}, {"shuffle": True, "shuffle_rows": 12}, {"shuffle_rows": 30, "split_rows": 20}],
    ids=str,
)
def test_an_audit_notices_the_right_rows_in_wrong_steps(change, options, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    source = SOURCES["parquet"](tmp_path / "data", [[20, 20, 20, 20], [20, 20, 20]])
    inputs = EpochPlan.worker_inputs
    run_link(source, tmp_path / "right", TOPOLOGY, options, None, None, 0)
    assert audit_job(tmp_path / "right").is_exact
    monkeypatch.setattr(EpochPlan, "worker_inputs", lambda plan, rank: change(inputs, plan, rank))
    run_link(source, tmp_path / "wrong", TOPOLOGY, options, None, None, 0)
    (epoch,) = audit_job(tmp_path / "wrong").epochs
    assert (epoch.once, epoch.never, epoch.again) == (140, 0, 0)
    assert [problem.split(" had ")[1].split(" in ")[0] for problem in epoch.problems] == ["other rows than planned"] * 2


def test_wrong_rows_are_named_by_file_row_group_and_rows(tmp_path, monkeypatch):
    same_rank(monkeypatch)
    (epoch,) = run_two_links(tmp_path, {}).epochs
    assert {Path(rows.path).name for rows in epoch.wrong} == {"00.parquet", "01.parquet"}
    assert sum(rows.stop - rows.start for rows in epoch.wrong if rows.times == 0) == epoch.never > 0
    assert sum((rows.stop - rows.start) * (rows.times - 1) for rows in epoch.wrong if rows.times > 1) == epoch.again > 0


def test_orders_of_windows_in_several_lanes_are_not_recorded(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    source = SOURCES["parquet"](tmp_path / "data", [[40, 40], [40, 40]])
    topology = Topology(num_ranks=2, num_workers=1, batch_size=8)
    windows, take = [], Origins.take

    def seen(origins):
        origin = take(origins)
        windows.extend(origin.windows)
        return origin

    monkeypatch.setattr(Origins, "take", seen)
    options = {"shuffle": True, "shuffle_rows": 40, "lanes": Lanes(4, rows=4)}
    run_link(source, tmp_path / "audits", topology, options, None, None, 0)
    assert windows
    assert all(len(window) == 6 + 3 * window[4] for window in windows)  # a head and its inputs
    assert audit_job(tmp_path / "audits").is_exact


def test_steps_after_the_loaded_state_count_as_replayed(tmp_path):
    (epoch,) = run_two_links(tmp_path, {"shuffle": True}, lost=2).epochs
    assert not epoch.problems
    assert epoch.replayed == 2 * 2 * 8
    assert epoch.topologies == ("2 ranks × 2 workers, batch 8", "3 ranks × 1 worker, batch 7")


def test_a_lost_record_of_a_rank_is_missed(tmp_path):
    assert run_two_links(tmp_path, {}).is_exact
    min((tmp_path / "audits").glob("*-rank1-*.audit")).unlink()
    (epoch,) = audit_job(tmp_path / "audits").epochs
    assert any("Rank 1 of 2 has no record of 3 steps" in problem for problem in epoch.problems)


def test_ranks_with_fewer_recorded_steps_than_others_are_named_in_an_epoch_that_stopped(tmp_path):
    (tmp_path / "data").mkdir()
    source = SOURCES["parquet"](tmp_path / "data", [[20, 20, 20, 20]])
    ranks = open_ranks(source, tmp_path / "audits", replace(TOPOLOGY, num_ranks=3), {}, None)
    for dataset, steps in zip(ranks, (3, 1, 2), strict=True):
        passes = batches_of(dataset)
        for _ in islice(passes, steps):
            pass
        passes.close()
    (epoch,) = audit_job(tmp_path / "audits").epochs
    assert (epoch.state, epoch.behind, epoch.problems) == ("stopped", ((1, 1), (2, 2)), ())
    assert "since the last resume: rank 1 (1 step), rank 2 (2 steps)" in tdu("audit", tmp_path / "audits").stdout


def test_an_epoch_that_was_left_is_missed_and_the_last_epoch_may_go_on(tmp_path):
    (tmp_path / "data").mkdir()
    source = SOURCES["parquet"](tmp_path / "data", [[20, 20, 20]])
    loader = TableDataLoader(source.open(audit=tmp_path / "audits", batch_size=8, num_workers=0))
    for epoch, problems in enumerate([(), ("The job went on to epoch 1 before the end of this epoch.",)]):
        loader.set_epoch(epoch)
        for _ in islice(loader, 2):
            pass
        assert audit_job(tmp_path / "audits").epochs[0].problems == problems


@given(data=st.data())
@settings(max_examples=effort(40), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_changed_byte_is_noticed_and_a_torn_end_is_not_an_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("audit")
    file = AuditFile(folder, "name")
    file.begin_pass({"pass": 1})
    for step in range(4):
        file.add_run((1, step, 1, 0, 10 * step, 10))
        if step == 1:
            file.flush()
    (path,) = folder.glob("*.audit")
    whole = path.read_bytes()
    (found,) = read_audit(path)
    assert sorted(found.runs[:, 0].tolist()) == [0, 1, 2, 3]
    at = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:at])
    assert len(read_audit(path)) <= 1
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << data.draw(st.integers(0, 7))]) + whole[at + 1 :])
    try:
        changed = read_audit(path)
    except CorruptFileError:
        return
    assert sum(len(each.runs) for each in changed) < 4  # the length of the frame, which looks torn now


def test_states_do_not_depend_on_an_audit(tmp_path):
    source = SOURCES["parquet"](tmp_path, [[20, 20]])
    states = []
    for options in ({}, {"audit": tmp_path / "audits"}):
        dataset = source.open(batch_size=8, num_workers=0, **options)
        batches = iter(TableDataLoader(dataset))
        next(batches)
        states.append(dataset.state_dict())
    assert states[0] == states[1]


def test_an_audit_needs_known_row_counts_and_a_folder(tmp_path):
    source = SOURCES["uncounted"](tmp_path, [[20]])
    with pytest.raises(ConfigError, match="audit= needs known row counts"):
        source.open(audit=tmp_path / "audits", **source.options)
    with pytest.raises(ConfigError, match="is a URL"):
        SOURCES["parquet"](tmp_path, [[20]]).open(audit="s3://bucket/audits")


@pytest.mark.processes
@pytest.mark.cases(2)
@pytest.mark.parametrize("options", [{"shuffle": True}, {"transform": dict}, {"in_order": False}], ids=str)
def test_worker_processes_send_the_origins_of_their_batches(options, tmp_path):
    source = SOURCES["parquet"](tmp_path, [[20, 20, 20], [40, 7]])
    in_order = options.pop("in_order", True)
    dataset = source.open(audit=tmp_path / "audits", batch_size=8, num_workers=2, **options)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        for _ in TableDataLoader(dataset, in_order=in_order):
            pass
    audit = audit_job(tmp_path / "audits")
    assert audit.is_exact
    assert [(each.epoch, each.once) for each in audit.epochs] == [(0, 107), (1, 107)]


def test_sources_of_a_blend_are_audited_each_for_itself(tmp_path):
    sources = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        sources.append(SOURCES["parquet"](tmp_path / name, [[20, 20], [30]]))

    def blended():
        datasets = [
            source.open(audit=tmp_path / f"audits-{number}", batch_size=8, num_workers=0, shuffle=True)
            for number, source in enumerate(sources)
        ]
        return blend(list(map(TableDataLoader, datasets)), [2, 1], per="sample", batch_size=12, stop="all_exhausted")

    loader = blended()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    next(batches)
    loader = blended()
    loader.load_state_dict(state)
    for _ in loader:
        pass
    for number in range(2):
        audit = audit_job(tmp_path / f"audits-{number}")
        assert audit.is_exact, audit
        assert (audit.epochs[0].state, audit.epochs[0].once) == ("complete", 70)


@pytest.mark.processes
def test_workers_of_a_foreign_dataloader_record_what_they_made(tmp_path):
    (tmp_path / "data").mkdir()
    dataset = SOURCES["parquet"](tmp_path / "data", [[20, 20, 20], [40, 7]]).open(
        audit=tmp_path / "audits", batch_size=8, num_workers=0
    )
    for _ in DataLoader(dataset, batch_size=None, num_workers=2):
        pass
    audit = audit_job(tmp_path / "audits")
    assert audit.is_exact, audit
    assert (audit.passes, audit.epochs[0].once) == (2, 107)


@pytest.mark.processes
@pytest.mark.slow
def test_an_audit_holds_under_kills_at_any_moment(tmp_path):
    (tmp_path / "data").mkdir()
    SOURCES["parquet"](tmp_path / "data", [[50] * 8, [30] * 9])
    job = [sys.executable, "-W", "ignore", "-m", "tests.promises.killed_passes", str(tmp_path)]
    subprocess.run(job, cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}"}, check=True)
    audit = audit_job(tmp_path / "audits")
    assert audit.is_exact, audit
    assert audit.passes > 5
    assert [(each.state, each.once) for each in audit.epochs] == [("complete", 670)] * 2
