"""`tdu plan`: the loader's own plan as a table, as JSON, and as pictures that show all of it."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.cli.shell import one_line, tdu, tdu_json
from tests.stream.tables import write_table
from torch_dataloader_utils import open_loader, plan_epoch, scan_files
from torch_dataloader_utils.cli.plan import summarize
from torch_dataloader_utils.cli.plan_page import plan_page
from torch_dataloader_utils.plan.pictures.timeline import make_timeline

PLANS = [
    {},
    {"num_ranks": 4, "num_workers": 3, "batch_size": 16},
    {"num_ranks": 3, "num_workers": 2, "batch_size": 10, "shuffle": True, "shuffle_rows": 300},
    {"num_ranks": 2, "num_workers": 1, "batch_size": 8, "lanes": 4, "drop_last": True},
    {"num_ranks": 4, "rank_sharding": "chunks", "split_rows": 200, "batch_size": 10},
]


def picture_of(page):
    """The page's svg, parsed."""
    return ElementTree.fromstring(re.search(r"<svg.*</svg>", page, re.DOTALL)[0])


@pytest.mark.parametrize("options", PLANS)
def test_bars_are_what_the_workers_read(table, options):
    pytest.importorskip("pandas", reason="counts what the plan's table says by its own means")
    plan = plan_epoch(scan_files(str(table)), **options)
    timeline = make_timeline(plan, max_ranks=100)
    uses = plan.to_arrow().to_pandas()
    assert len(timeline.workers) == plan.topology.num_ranks * plan.topology.num_workers
    for worker in timeline.workers:
        own = uses[(uses["rank"] == worker.rank) & (uses["worker"] == worker.worker)]
        assert worker.num_bytes == own["bytes"].sum()
        assert sum(map(len, worker.lanes)) == len(own)
        for lane in worker.lanes:
            ends = [bar.start + bar.length for bar in lane]
            assert np.allclose([bar.start for bar in lane], [0.0, *ends[:-1]][: len(lane)])
            assert not ends or np.isclose(ends[-1], worker.num_bytes)
    readers = uses.groupby(["path", "row_group"]).apply(
        lambda own: len(set(zip(own["rank"], own["worker"], strict=True)))
    )
    shared = sum(
        len(uses[(uses["path"] == path) & (uses["row_group"] == group)]) for path, group in readers[readers > 1].index
    )
    assert timeline.shared_groups == shared
    assert all(np.diff(timeline.ticks) == timeline.ticks[1])
    assert 4 <= len(timeline.ticks) <= 9


@pytest.mark.parametrize("options", PLANS)
def test_the_page_draws_every_bar_and_worker(table, options):
    plan = plan_epoch(scan_files(str(table)), **options)
    timeline = make_timeline(plan, max_ranks=100)
    page = plan_page(summarize(plan), timeline)
    svg = picture_of(page)
    assert len(svg.findall(".//title")) == sum(len(lane) for worker in timeline.workers for lane in worker.lanes)
    texts = [element.text for element in svg.iter("text")]
    for worker in timeline.workers:
        assert f"rank {worker.rank} · worker {worker.worker}" in texts
    assert "<script" not in page
    assert not re.search(r"(src|href)=", page)


def test_names_are_escaped_and_credentials_left_out(tmp_path):
    folder = tmp_path / "<b>&"
    folder.mkdir()
    write_table(folder, [[10]])
    (folder / "part-00.parquet").rename(folder / '<script>"x".parquet')
    plan = plan_epoch(scan_files(str(folder)), batch_size=5)
    page = plan_page(summarize(plan), make_timeline(plan, 1))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.slow
def test_many_row_groups_are_merged_where_nothing_is_lost(tmp_path):
    write_table(tmp_path, [[2] * 4500])
    plan = plan_epoch(scan_files(str(tmp_path)), batch_size=100)
    (worker,) = make_timeline(plan, 1).workers
    ((bar,),) = worker.lanes
    assert bar.length == worker.num_bytes
    assert bar.label.endswith("row groups 0 to 4499")


def test_the_table_and_the_json_are_the_plan(table):
    options = ["--ranks", 4, "--workers", 2, "--batch-size", 32, "--shuffle", "--seed", 7, "--epoch", 3]
    report = tdu_json("plan", table, *options)
    plan = plan_epoch(scan_files(str(table)), num_ranks=4, num_workers=2, batch_size=32, shuffle=True, seed=7, epoch=3)
    assert report["fingerprint"] == plan.fingerprint
    assert report["steps"] == [plan.steps, plan.steps]
    assert sum(worker["rows"] for worker in report["workers"]) == 1500
    assert sum(worker["batches"] for worker in report["workers"]) == 4 * plan.steps
    text = tdu("plan", table, *options).stdout
    assert f"{plan.steps} on every rank" in text
    assert tdu("plan", table, *options, "--max-ranks", 1).stdout.count("more ranks") == 1


def test_the_imbalance_says_of_which_ranks_it_is(table):
    chunks = [table, "--ranks", 4, "--rank-sharding", "chunks", "--split-rows", 200]
    assert "the mean of the bytes\n" in tdu("plan", *chunks).stdout
    assert "the mean of the bytes, first 2 ranks\n" in tdu("plan", *chunks, "--max-ranks", 2).stdout
    report = tdu_json("plan", *chunks, "--max-ranks", 2)
    assert (report["num_ranks"], report["shown_ranks"], len(report["workers"])) == (4, 2, 2)


def test_unequal_ranks_and_dropped_rows_are_said(table):
    chunks = ["--ranks", 4, "--rank-sharding", "chunks", "--split-rows", 200, "--batch-size", 64]
    assert "ranks DIFFER" in tdu("plan", table, *chunks).stdout
    assert "14 rows (--drop-last)" in tdu("plan", table, "--ranks", 2, "--batch-size", 743, "--drop-last").stdout


def test_what_is_unequal_is_marked_on_the_page(table):
    plan = plan_epoch(
        scan_files(str(table)), num_ranks=4, rank_sharding="chunks", split_rows=200, batch_size=64, drop_last=True
    )
    page = plan_page(summarize(plan), make_timeline(plan, 2))
    assert "steps: ranks differ" in page
    assert "rows dropped / repeated" in page
    assert "the first 2 of 4 ranks" in page
    assert "by the mean, bytes, first 2 ranks" in page


def test_pictures_and_the_list_of_reads_are_written(table, tmp_path):
    page, picture, reads = tmp_path / "plan.html", tmp_path / "plan.svg", tmp_path / "plan.parquet"
    tdu("plan", table, "--ranks", 3, "--draw", page, "--save", reads)
    tdu("plan", table, "--ranks", 3, "--draw", picture)
    assert picture_of(page.read_text()) is not None
    assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    rows = pq.read_table(reads)
    assert sum(b - a for a, b in zip(rows["start_row"].to_pylist(), rows["stop_row"].to_pylist(), strict=True)) == 1500


@pytest.mark.parametrize("name", ["plan.png", "plan"])
def test_a_picture_of_another_format_is_one_line_that_names_html_and_svg(table, tmp_path, name):
    line = one_line(tdu("plan", table, "--draw", tmp_path / name, code=2))
    assert f"'{name}' is neither a page nor a picture. Give a name that ends in .html or .svg." in line
    assert not list(tmp_path.glob("plan*"))


def test_a_drawn_picture_names_the_files_by_their_colours(table, tmp_path):
    picture = tmp_path / "plan.svg"
    tdu("plan", table, "--draw", picture)
    text = picture.read_text()
    assert all(f"part-{number}.parquet" in text for number in range(3))


def test_a_cache_of_a_size_is_foreseen(table):
    options = [str(table), "--ranks", "4", "--shuffle", "--split-rows", "1"]
    assert tdu_json("plan", *options)["cache"] is None
    shared = [*options, "--host-shares", "2", "--cache-bytes", "1GiB"]
    plan = plan_epoch(scan_files(str(table)), num_ranks=4, shuffle=True, split_rows=1, host_shares=2)
    found = tdu_json("plan", *shared)["cache"]
    assert found.startswith("1 GiB for 2 ranks")
    assert found.endswith("then 100 %, 100 %, 100 %, 100 %")
    assert f"cache: {found}" in plan.explain(cache_bytes="1GiB")
    assert found in " ".join(tdu("plan", *shared).stdout.split())
    assert "\ncache" not in tdu("plan", *options).stdout
    assert "--cache-bytes much" in one_line(tdu("plan", *options, "--cache-bytes", "much", code=2))


@pytest.mark.parametrize("command", ["plan", "scan", "head", "state"])
def test_a_command_finds_the_format_by_looking_as_open_loader_does(tmp_path, lake, command):
    rows = pa.table({"x": range(30), "day": [n % 2 for n in range(30)]})
    write_deltalake(tmp_path / "delta", rows)
    pq.write_to_dataset(rows, tmp_path / "hive", partition_cols=["day"])
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "rows.csv").write_text("x,day\n" + "".join(f"{n},{n % 2}\n" for n in range(30)))
    metadata = lake[1].removeprefix("file://")
    for path, count in [("delta", 30), ("hive", 30), ("lines", 30), (metadata.rpartition("/metadata/")[0], 290)]:
        place = tmp_path / path
        loader = open_loader(place, batch_size=10, shuffle_seed=1)
        if command == "state":
            state = tmp_path / "state.json"
            state.write_text(json.dumps(loader.state_dict()))
            (report,) = tdu_json("state", state, place)["states"]
            assert report["rows"]["remaining_rows"] == count
        elif command == "head":
            assert len(tdu_json("head", place, "--batch-size", 10)["batches"][0]["rows"]) == 10
        else:
            assert tdu_json(command, place)["num_rows"] == count
