"""What a newcomer is told: the option that differs, the recipe, the epoch of nothing; and what objects print."""

import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader, default_collate

from torch_dataloader_utils import (
    BlendedLoader,
    Decoding,
    DevicePrefetcher,
    IcebergDataset,
    Lanes,
    RowDataset,
    StructuredDataset,
    TableDataLoader,
    TokenBatches,
    blend,
    plan_epoch,
    scan_files,
)
from torch_dataloader_utils._core.state import encode_state
from torch_dataloader_utils.errors import (
    CheckpointMismatchError,
    ConfigError,
    ConfigTypeError,
    SchemaError,
    TransformError,
    UnsupportedFeatureError,
    of_type,
)
from torch_dataloader_utils.integrations.torchdata import for_torchdata

ROWS = 40


@pytest.fixture
def trips(tmp_path: Path) -> Path:
    """Two files of 20 rows in row groups of 5, below year=2023 and year=2024."""
    for number, year in enumerate((2023, 2024)):
        folder = tmp_path / "trips" / f"year={year}"
        folder.mkdir(parents=True)
        rows = np.arange(20 * number, 20 * number + 20)
        table = pa.table({"row": rows, "fare": rows / 2, "tip": rows / 20})
        pq.write_table(table, folder / "part.parquet", row_group_size=5)
    return tmp_path / "trips"


def load(path: Path, **options):
    return StructuredDataset.create_dataloader(path, **{"batch_size": 4, **options})[0]


@pytest.mark.parametrize(
    ("saved", "present", "says"),
    [
        ({"columns": ["row", "fare"]}, {"columns": ["row"]}, r"columns row, fare, here row\. "),
        ({}, {"columns": ["row"]}, r"columns all, here row\. "),
        ({}, {"filters": pc.field("row") > 7}, "filters none, here [0-9a-f]{8}; "),
        ({}, {"partitioning": "hive"}, "schema"),
    ],
)
def test_a_state_of_other_settings_says_which(trips, saved, present, says):
    state = load(trips, **saved).state_dict()
    with pytest.raises(CheckpointMismatchError, match=says):
        load(trips, **present).load_state_dict(state)


def test_a_state_that_was_saved_without_settings_loads_and_misfits_as_before(trips):
    loader = load(trips, num_workers=0)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    assert dict(state["settings"])["columns"] == "all"
    position = loader.dataset.progress.position
    identity = loader.dataset.planner.identity
    older = encode_state(replace(identity, settings=()), position)
    assert "settings" not in older
    resumed = load(trips)
    resumed.load_state_dict(older)
    assert next(iter(resumed))["row"].tolist() == [4, 5, 6, 7]
    with pytest.raises(CheckpointMismatchError, match=r"its data fingerprint is '[0-9a-f]{32}'"):
        load(trips, columns=["row"]).load_state_dict(older)


def test_a_state_of_many_columns_stays_small(tmp_path):
    names = [f"a_rather_long_column_name_{number}" for number in range(300)]
    pq.write_table(pa.table({name: [1.0] for name in names}), tmp_path / "wide.parquet")
    state = load(tmp_path, columns=names).state_dict()
    assert len(dict(state["settings"])["columns"]) < 120


@pytest.mark.parametrize(
    "option",
    [{"prefetch_factor": 4}, {"persistent_workers": True}, {"multiprocessing_context": "spawn"}, {"timeout": 9}],
)
def test_options_of_worker_processes_without_any_say_so(trips, option):
    with pytest.raises(ConfigError, match=f"{next(iter(option))}=.* is for worker processes.*num_workers=1"):
        load(trips, **option)
    assert len(load(trips, num_workers=1, transform=None, **option)) == ROWS // 4


@pytest.mark.processes
@pytest.mark.cases(2)
@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")  # what torchdata calls
@pytest.mark.parametrize("is_stateful", [False, True])
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("output_format", ["torch", "numpy"])
def test_batches_of_batches_are_refused_with_the_recipe(trips, is_stateful, num_workers, output_format):
    stateful = pytest.importorskip("torchdata.stateful_dataloader") if is_stateful else None
    loader_class = stateful.StatefulDataLoader if stateful else DataLoader
    dataset = StructuredDataset(trips, batch_size=4, output_format=output_format)
    dataset = for_torchdata(dataset) if stateful else dataset
    with pytest.raises(ConfigError, match=r"batches of batches.*batch_size=None"):
        next(iter(loader_class(dataset, batch_size=4, num_workers=num_workers)))
    assert len(next(iter(loader_class(dataset, batch_size=None, num_workers=num_workers)))["row"]) == 4


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")  # what torchdata calls
@pytest.mark.parametrize("num_workers", [0, 1])
def test_torchdata_without_its_adapter_is_refused_with_the_recipe(trips, num_workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    loader = stateful.StatefulDataLoader(StructuredDataset(trips), batch_size=None, num_workers=num_workers)
    with pytest.raises(ConfigError, match=r"StatefulDataLoader\(for_torchdata\(dataset\), batch_size=None\)"):
        next(iter(loader))


@pytest.mark.full
def test_the_adapter_for_torchdata_takes_data_sets_of_batches_alone(trips):
    with pytest.raises(ConfigTypeError, match=r"for_torchdata got .*RowDataset"):
        for_torchdata(RowDataset(trips))


def test_a_loader_that_was_not_unpacked_says_so_where_it_is_taken_for_a_batch(trips):
    pair = StructuredDataset.create_dataloader(trips, batch_size=4)
    with pytest.raises(ConfigTypeError, match=r"TableDataLoader\['fare'\]: .*loader, dataset = "):
        [batch["fare"] for batch in pair]


@pytest.mark.slow
def test_a_row_by_number_is_refused_with_the_data_set_that_has_them(trips):
    with pytest.raises(
        ConfigTypeError, match=r"StructuredDataset\[0\]: .* no numbers\. Iterate the data set, or use RowDataset"
    ):
        StructuredDataset(trips)[0]


@pytest.mark.processes
@pytest.mark.cases(2)
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", [TableDataLoader, BlendedLoader, DevicePrefetcher])
def test_a_loader_in_a_loader_is_told_that_it_is_one(trips, kind, num_workers):
    own = load(trips, num_workers=0)
    loader = {TableDataLoader: own, BlendedLoader: blend([own], [1]), DevicePrefetcher: DevicePrefetcher(own, "cpu")}[
        kind
    ]
    around = DataLoader(loader, batch_size=None, num_workers=num_workers)
    with pytest.raises(ConfigTypeError, match=rf"{kind.__name__}\[0\]: .*without a DataLoader around it"):
        next(iter(around))
    assert len(list(loader)) == ROWS // 4


def test_what_callers_call_their_own_variables_does_not_matter(trips):
    auto_collation, collate_fn = True, default_collate
    batches = iter(StructuredDataset(trips, batch_size=4))
    assert auto_collation
    assert collate_fn([next(batches)["row"]]).shape == (1, 4)


def test_whoever_collates_batches_knows_what_they_are(trips):
    dataset = StructuredDataset(trips, batch_size=4)
    (batch,) = next(iter(DataLoader(dataset, batch_size=1, collate_fn=list)))
    assert batch.num_rows == 4


def test_a_column_of_other_files_is_answered_with_missing(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [1], "coupon": [2]}), tmp_path / "b.parquet")
    with pytest.raises(ConfigError, match=r'names \'coupon\'.*columns of .*a\.parquet; missing="null" reads columns'):
        load(tmp_path, columns=["x", "coupon"])
    with pytest.raises(ConfigError, match=r"names 'z', .*the columns are 'x'\.$"):
        load(tmp_path / "a.parquet", columns=["z"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"filters": pc.field("row") > 1000}, r"no row of .* is left by filters=\(row > 1000\)"),
        ({"filters": pc.field("fare") == 0.25}, "is left by filters="),
        ({"filters": pc.field("fare") == None}, r"A comparison with None is never true: .*is_null\(\)"),  # noqa: E711
        ({"drop_last": True, "batch_size": 41}, "drop_last=True leaves out all 40 rows.*need 41"),
        ({"drop_last": True, "batch_size": 21, "num_ranks": 2}, "2 ranks times batch_size=21 need 42"),
    ],
)
def test_an_epoch_of_nothing_warns_with_the_reason(trips, options, says):
    with pytest.warns(UserWarning, match=says):
        assert len(load(trips, **options)) == 0


def test_a_warning_names_the_line_that_made_the_loader(trips):
    with pytest.warns(UserWarning, match="leaves out all") as caught:
        StructuredDataset.create_dataloader(trips, batch_size=41, drop_last=True)
    assert [warning.filename for warning in caught] == [__file__]


def test_files_without_rows_warn(tmp_path):
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    with pytest.warns(UserWarning, match="has no rows"):
        assert list(load(tmp_path)) == []


def test_objects_print_what_they_are(trips):
    inventory = scan_files(trips)
    rows = f"{trips}: 2 files, 8 row groups, 40 rows"
    assert repr(inventory) == f"<Inventory of {rows}>"
    plan = plan_epoch(inventory, num_ranks=3, num_workers=2, batch_size=4, epoch=7, drop_last=True)
    assert repr(plan) == (
        "<EpochPlan: epoch 7, 3 ranks x 2 workers, batch_size=4, 36 rows, 3 steps, 4 rows dropped; explain() says more>"
    )
    loader, dataset = StructuredDataset.create_dataloader(trips, batch_size=4, num_ranks=2, rank=1)
    assert repr(dataset) == f"<StructuredDataset {rows}; rank 1 of 2, epoch 0>"
    assert repr(loader) == f"<TableDataLoader of 4-row batches by threads from {dataset!r}>"
    assert "2 worker processes" in repr(load(trips, num_workers=2))
    assert repr(RowDataset(trips)) == f"<RowDataset {rows}>"


def test_what_is_not_counted_is_not_claimed(trips):
    loader = load(trips, filters=pc.field("fare") == 1.5, count_rows=False)
    assert "rows not counted, filtered" in repr(loader)
    assert "row counts unknown" in repr(loader.plan)


def test_what_is_printed_holds_no_secret(trips):
    secret = {"key": "canary-1234"}
    loader, dataset = StructuredDataset.create_dataloader(trips, storage_options=secret)
    assert "canary" not in f"{loader!r} {dataset!r} {loader.plan!r} {loader.plan.inventory!r}"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("path", None, "a path is a str"),
        ("columns", 1, "columns is a list of names; got 1"),
        ("columns", {"row", "fare"}, "columns is a set, and its order differs in each process. Pass a list"),
        ("columns", frozenset(["row"]), "columns is a frozenset, and its order differs"),
        ("stack", {"x": {"row", "fare"}}, r"stack\['x'\] is a set, and its order differs in each process. Pass a list"),
        ("columns", ["row", 1], "Names are text, not 1"),
        ("rank", "0", "rank='0': pass a whole number"),  # what os.environ["RANK"] gives
        ("rank", 0.0, "rank=0.0: pass a whole number"),
        ("num_workers", "2", "num_workers='2': pass a whole number"),
        ("num_workers", float("nan"), "num_workers=nan: pass a whole number"),
        ("batch_size", None, "batch_size=None: pass a whole number"),
        ("batch_size", np.array([1, 2]), r"batch_size=array\(\[1, 2\]\): pass a whole number"),
        ("shuffle", "false", "shuffle='false': pass True .*, \"chunks\" .* or False"),  # was taken for True
        ("shuffle", 1000, "shuffle=1000: pass True or False. shuffle_rows=1000 sets how many rows"),
        ("shuffle", "rows", "shuffle='rows': pass True .permute chunks, and rows in windows."),
        ("drop_last", "no", "drop_last='no': pass True or False"),
        ("drop_last", [], r"drop_last=\[\]: pass True or False"),
        ("progress_interval_sec", "10", "progress_interval_sec='10': pass a finite number of seconds"),
        ("transform", 3, "transform is an int: pass a function of a batch, or None"),  # failed at the first batch
        ("collate_fn", "default", "collate_fn is a str: pass a function of a batch"),
        ("remote", {"backend": "obstore"}, "remote is a dict: pass RemoteOptions"),
        ("storage_options", 5, "storage_options is an int: pass a dict"),
        ("stack", "row", "stack='row': pass a dict of lists of columns"),
        ("stack", 5, "stack=5: pass a dict of lists of columns"),
        ("stack", {"x": 5}, r"stack=\{'x': 5\}: give a list of one or more column names"),
        ("stack", {"x": [["row"]]}, r"names column \['row'\], which is not read"),
        ("format", "https://host/b?sig=hunter2", r"format='https://host/b' is unknown; .* Several paths are one list"),
    ],
)
def test_an_option_of_another_type_is_refused_before_anything_is_read(trips, name, value, says):
    with pytest.raises(ConfigError, match=says):
        StructuredDataset.create_dataloader(**{"path": trips, name: value})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("format", 3, "format=3: pass one of the texts parquet, orc"),
        ("format", ["parquet"], r"format=\['parquet'\]: pass one of the texts"),
        ("num_ranks", "2", "num_ranks='2': pass the number of training processes, or \"auto\""),
        ("num_ranks", 2.0, "num_ranks=2.0: pass the number of training processes"),
        ("num_ranks", True, "num_ranks=True: pass the number of training processes"),
        ("split_strategy", 3, "split_strategy=3 has no generate"),
    ],
)
def test_a_wrong_type_is_a_type_error_too(trips, name, value, says):
    with pytest.raises(ConfigTypeError, match=says):
        StructuredDataset.create_dataloader(**{"path": trips, name: value})


def test_options_may_be_numpy_values_and_zero_or_one(trips):
    options = {"num_ranks": np.int64(2), "rank": np.int32(1), "num_workers": np.int8(0), "shuffle": np.True_}
    loader = load(trips, **options, columns=np.array(["row"]), drop_last=1, batch_size=np.uint16(4))
    assert sum(batch.num_rows for batch in loader) == 20
    saved = load(trips, num_ranks=2, rank=1, num_workers=0, shuffle=True, columns=["row"], drop_last=True)
    saved.load_state_dict(loader.state_dict())


def test_a_path_where_an_inventory_belongs_is_told_apart(trips):
    with pytest.raises(ConfigTypeError, match=r"inventory is a str: pass the result of scan_files\(path\)"):
        plan_epoch(str(trips))
    with pytest.raises(ConfigError, match="num_workers=-1: pass a whole number of at least 0"):
        plan_epoch(scan_files(trips), num_workers=-1)


def test_the_plan_of_the_rest_of_an_epoch_has_a_fingerprint_of_its_own(trips):
    loader, resumed = load(trips), load(trips)
    fingerprints = [loader.plan.fingerprint]
    batches = iter(loader)
    for _ in range(2):
        next(batches)
        resumed.load_state_dict(loader.state_dict())
        fingerprints.append(resumed.plan.fingerprint)
    assert len(set(fingerprints)) == 3


@pytest.mark.parametrize("name", ["shuffle_rows", "shuffle_buffer_size"])
def test_windows_of_no_rows_are_no_windows(trips, name):
    plan, whole = load(trips, **{name: 0}).plan, plan_epoch(scan_files(trips), shuffle_rows=0, batch_size=4)
    assert plan.fingerprint == whole.fingerprint == load(trips).plan.fingerprint
    with pytest.raises(ConfigError, match=f"{name}=-1: pass a whole number of at least 0"):
        load(trips, **{name: -1})
    with pytest.raises(ConfigError, match="shuffle_rows=-1: pass a whole number of at least 0"):
        plan_epoch(scan_files(trips), shuffle_rows=-1)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("shuffle_seed", 1.5, ConfigTypeError),
        ("shuffle_rows", "x", ConfigTypeError),
        ("shuffle_buffer_size", "x", ConfigTypeError),
        ("split_bytes", [], ConfigTypeError),
        ("split_bytes", "x", ConfigError),
        ("split_bytes", 0, ConfigError),
        ("split_rows", 0, ConfigError),
        ("interleave", 0, ConfigError),
        ("lanes", "4", ConfigTypeError),
        ("token_batches", "tokens", ConfigTypeError),
        ("decoding", {"threads": 1}, ConfigTypeError),
    ],
)
def test_an_option_is_refused_by_the_name_it_was_passed_under_before_files_are_looked_for(tmp_path, name, value, error):
    with pytest.raises(error, match=f"^{name}={re.escape(repr(value))}"):
        StructuredDataset.create_dataloader(tmp_path / "nowhere", **{name: value})


def test_a_plan_takes_none_for_the_defaults_that_loaders_have(trips):
    inventory = scan_files(trips)
    default = plan_epoch(inventory, split_bytes=None, interleave=None, shuffle_rows=10)
    given = plan_epoch(inventory, split_bytes="128MiB", interleave=4, shuffle_rows=10)
    assert default.to_arrow() == given.to_arrow()
    with pytest.raises(ConfigTypeError, match=r"split_bytes=1\.5 is no number of bytes"):
        plan_epoch(inventory, split_bytes=1.5)


def test_chunks_of_a_window_need_windows(trips):
    for shuffle_rows in (None, 0):
        for shuffle in (False, "chunks"):
            options = {"interleave": 2, "shuffle": shuffle, "shuffle_rows": shuffle_rows}
            with pytest.raises(ConfigError, match=r"interleave=2 .* pass shuffle=True, or shuffle_rows="):
                load(trips, **options)
            with pytest.raises(ConfigError, match=r"interleave=2 .* pass shuffle=True, or shuffle_rows="):
                plan_epoch(scan_files(trips), **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"shuffle": "chunks", "shuffle_rows": 50}, r'shuffle="chunks" keeps .* shuffle_rows=50 .* pass shuffle=True'),
        ({"shuffle": True, "shuffle_rows": 0}, r'shuffle_rows=0 asks for no windows: pass shuffle="chunks"'),
        ({"shuffle": True, "shuffle_buffer_size": 0}, r'asks for no windows: pass shuffle="chunks"'),
    ],
)
def test_options_of_shuffles_that_contradict_each_other_are_refused(trips, options, says):
    with pytest.raises(ConfigError, match=says):
        load(trips, **options)


def test_a_cache_of_less_than_nothing_is_refused(trips):
    with pytest.raises(ConfigError, match="cache_bytes=-1: pass 0 or more bytes"):
        RowDataset(trips, cache_bytes=-1)
    with pytest.raises(ConfigError, match="cache_bytes='x' is no number of bytes"):
        RowDataset(trips, cache_bytes="x")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Decoding(threads=float("nan")), "threads=nan: pass a whole number"),  # looped for ever
        (lambda: Decoding(threads=-1), "threads=-1: pass a whole number of at least 0"),
        (lambda: Decoding(ahead_bytes=-1), "ahead_bytes=-1: pass 0 or more bytes"),
        (lambda: Decoding(ahead_bytes=None), "ahead_bytes=None is no number of bytes"),
        (lambda: Decoding(page_checksums="no"), "page_checksums='no': pass True or False"),
        (lambda: Lanes(4, rows=0), "rows=0: pass a whole number of at least 1"),
        (lambda: Lanes(None), "num_lanes=None: pass a whole number"),
        (lambda: TokenBatches("x", max_tokens=0), "max_tokens=0: pass a whole number of at least 1"),
        (
            lambda: TokenBatches("x", max_tokens=1, pad_to_multiple_of="8"),
            "pad_to_multiple_of='8': pass a whole number",
        ),
    ],
)
def test_groups_of_options_are_checked_when_they_are_made(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_lanes_are_said_in_short_by_a_number(trips):
    inventory = scan_files(trips)
    assert load(trips, lanes=4).plan.fingerprint == load(trips, lanes=Lanes(4)).plan.fingerprint
    assert plan_epoch(inventory, lanes=np.int64(4)).fingerprint == plan_epoch(inventory, lanes=Lanes(4)).fingerprint
    with pytest.raises(ConfigError, match="num_lanes=0: pass a whole number of at least 1"):
        plan_epoch(inventory, lanes=0)


def test_a_plan_takes_no_text_for_a_flag(trips):
    with pytest.raises(ConfigTypeError, match="drop_last='False': pass True or False"):
        plan_epoch(scan_files(trips), drop_last="False")
    with pytest.raises(ConfigError, match="shuffle='False': pass True"):
        plan_epoch(scan_files(trips), shuffle="False")


@pytest.mark.parametrize("value", ["x.parquet", {}, [], 5])
@pytest.mark.parametrize("dataset", [StructuredDataset, IcebergDataset, RowDataset])
def test_what_is_no_inventory_is_refused_by_every_data_set(dataset, value):
    with pytest.raises(ConfigTypeError, match=f"inventory is {of_type(value)}: pass the result of scan_files"):
        dataset("db.table", inventory=value)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are text")
def test_a_file_name_that_is_no_text_is_told_with_the_name(trips):
    shutil.copy(next(trips.rglob("*.parquet")), os.fsencode(trips) + b"/bad\xff.parquet")
    with pytest.raises(UnsupportedFeatureError, match=r"bad\\xff.parquet.*Rename it"):
        scan_files(trips)


def test_types_of_text_that_were_guessed_wrong_are_given_as_the_message_says(tmp_path):
    for number, value in enumerate(("", "1.5")):
        (tmp_path / f"{number}.csv").write_text(f"fare,n\n{value},1\n")
    with pytest.raises(SchemaError, match=r"inventory=scan_files\(\.\.\., schema=\)"):
        list(load(tmp_path, format="csv"))
    inventory = scan_files(tmp_path, "csv", schema=pa.schema([("fare", pa.float32()), ("n", pa.int64())]))
    batches = load(tmp_path, format="csv", inventory=inventory, output_format="dict")
    assert [batch["fare"] for batch in batches] == [[None, 1.5]]


def _leave(_batch):
    raise GeneratorExit("left")


def test_a_transform_that_raises_generator_exit_ends_no_pass_early(tmp_path):
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), num_workers=0, transform=_leave)
    with pytest.raises(TransformError, match="GeneratorExit: left"):
        list(loader)


def test_the_last_epoch_that_int64_holds_is_refused_as_none_can_follow(tmp_path):
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")
    loader, dataset = StructuredDataset.create_dataloader(str(tmp_path), num_workers=0)
    with pytest.raises(ConfigError, match="no epoch can follow"):
        dataset.set_epoch(2**63 - 1)
    dataset.set_epoch(2**63 - 2)
    assert len(list(loader)) == 1
    loader.load_state_dict(loader.state_dict())


def test_counts_of_one_are_singular(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    assert "1 file, 1 row group, 1 row" in str(scan_files(str(tmp_path)))


def test_an_unknown_strategy_where_none_is_installed(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"none is installed|installed are '"):
        StructuredDataset.create_dataloader(str(tmp_path), split_strategy="none-such")
