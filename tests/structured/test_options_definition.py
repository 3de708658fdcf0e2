"""An option is defined once: signatures, stubs, plans, `help()` and the page of options say the same."""

import importlib.util
import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest
import torch
from pyiceberg.expressions import BooleanExpression
from torch.distributed.device_mesh import DeviceMesh

from torch_dataloader_utils import (
    DeltaDataset,
    IcebergDataset,
    RowDataset,
    StructuredDataset,
    open_loader,
    plan_epoch,
    scan_delta,
    scan_files,
    scan_iceberg,
)
from torch_dataloader_utils._core.options import PlanOptions
from torch_dataloader_utils.datasets import delta, door, iceberg, row_dataset, structured
from torch_dataloader_utils.datasets import open as opening
from torch_dataloader_utils.datasets import options as table_options
from torch_dataloader_utils.datasets.delta_source import DeltaSource
from torch_dataloader_utils.datasets.door import Door, names_of
from torch_dataloader_utils.datasets.files import FileSource
from torch_dataloader_utils.datasets.iceberg_source import IcebergSource
from torch_dataloader_utils.datasets.options import ScanOptions, TableOptions
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.stream.loader_options import LoaderOptions

ROOT = Path(__file__).parents[2]
NAMES = {
    "torch": torch,
    "DeviceMesh": DeviceMesh,
    "BooleanExpression": BooleanExpression,
}
DATASETS = {
    StructuredDataset: structured,
    DeltaDataset: delta,
    IcebergDataset: iceberg,
}
DOORS = [
    *((each.create_dataloader, module.LOADER) for each, module in DATASETS.items()),
    *((each.__init__, module.DATASET) for each, module in DATASETS.items()),
    (scan_delta, delta.SCAN),
    (scan_iceberg, iceberg.SCAN),
    (RowDataset.__init__, row_dataset.ROWS),
    (open_loader, opening.OPEN),
]
# Of releases whose calls may pass them by position.
POSITIONAL = {
    StructuredDataset: "path format batch_size columns filters shuffle shuffle_seed split_bytes split_rows "
    "split_strategy num_workers output_format storage_options collate_fn partitioning num_ranks rank show_progress "
    "progress_interval_sec shuffle_buffer_size",
    DeltaDataset: "table batch_size columns filters version timestamp storage_options shuffle shuffle_seed split_bytes "
    "split_rows split_strategy num_workers output_format collate_fn num_ranks rank show_progress "
    "progress_interval_sec shuffle_buffer_size",
    IcebergDataset: "table catalog_config batch_size columns filters scan_filter snapshot_id shuffle shuffle_seed "
    "split_bytes split_rows split_strategy num_workers output_format collate_fn num_ranks rank show_progress "
    "progress_interval_sec shuffle_buffer_size",
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_options", ROOT / "scripts" / "write_options.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def hints(thing: Any) -> dict[str, Any]:
    """Return the types by name of a function, or of a class of options."""
    names = {**vars(table_options), **getattr(thing, "__globals__", {}), **NAMES}
    found = get_type_hints(thing, names) if inspect.isfunction(thing) else get_type_hints(thing, names, names)
    return {name: each for name, each in found.items() if name not in ("return", "options")}


def shown(function: Any) -> dict[str, Any]:
    """Return the defaults by name of the parameters that a signature shows."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind in kinds and each.name != "self"}


def defined(*kinds: type) -> dict[str, Any]:
    """Return the defaults by name; the mark of a signature for required options."""
    found = {each.name: each.default for kind in kinds for each in fields(kind)}
    return {name: inspect.Parameter.empty if default is MISSING else default for name, default in found.items()}


@pytest.mark.parametrize(("function", "entry"), DOORS)
def test_a_signature_shows_what_may_be_positional_and_what_is_everyday(function: Any, entry: Door) -> None:
    own = {name: default for name, default in shown(function).items() if name != "on_progress"}
    changed = {"format": "auto"} if entry is opening.OPEN else {}
    assert own.items() <= {**defined(*entry.kinds), **changed}.items()
    assert tuple(own)[: len(entry.positional)] == entry.positional
    everyday = {name for name, each in entry.options.items() if each.metadata["tier"] == "everyday"}
    assert own.keys() == everyday | {*entry.positional}
    assert 4 <= len(everyday) <= 18


@pytest.mark.parametrize("dataset", DATASETS)
def test_what_may_be_positional_stays_at_its_place(dataset: Any) -> None:
    assert DATASETS[dataset].LOADER.positional == tuple(POSITIONAL[dataset].split())


def test_no_option_is_defined_by_two_classes_of_a_door() -> None:
    for _, entry in DOORS:
        if entry is opening.OPEN:
            continue  # its sources have the same words for the same things
        assert len({*names_of(*entry.kinds)}) == len(names_of(*entry.kinds))


def test_a_call_is_bound_to_checked_values(tmp_path: Path) -> None:
    source, options, loader_options = structured.LOADER.bind((tmp_path, "orc", 7), {"timeout": 3, "rank": 0})
    assert source == FileSource(path=tmp_path, format="orc")
    assert options == TableOptions(batch_size=7)
    assert loader_options == LoaderOptions(timeout=3.0)


@pytest.mark.parametrize(
    ("args", "keywords", "told"),
    [
        ((), {}, "path is missing"),
        (("a", "orc"), {"path": "b"}, "path is passed by position and by name"),
        (tuple(range(21)), {}, "Got 21 positional arguments, and at most 20"),
    ],
)
def test_a_call_that_python_would_refuse_is_a_type_error(args: Any, keywords: Any, told: str) -> None:
    with pytest.raises(ConfigTypeError, match=told) as caught:
        StructuredDataset.create_dataloader(*args, **keywords)
    assert isinstance(caught.value, TypeError)


def test_scans_have_the_options_of_files_with_their_types_and_defaults() -> None:
    types, defaults = {**hints(FileSource), **hints(ScanOptions)}, defined(FileSource, ScanOptions)
    own = shown(scan_files)
    common = own.keys() & defaults.keys()
    assert len(common) >= 6
    assert {name: own[name] for name in common} == {name: defaults[name] for name in common}
    # Lists of files to scan are paths.
    assert {name for name in common if hints(scan_files)[name] != types[name]} <= {"path"}


# What goes by another name in plans; what only parts of an epoch have; what is one value for users.
PLAN_NAMES = {"shuffle_seed": "seed"}
PART_OF_EPOCH = {"first_row", "stop_row"}
GROUPED = {
    "lanes": {"num_lanes", "lane_rows"},
    "token_batches": {"bucket_by", "max_tokens_per_batch", "pad_to_multiple_of", "padding_free"},
    "split_strategy": {"strategy"},
    "shuffle": {"shuffle", "default_windows"},
}


def test_plans_have_the_options_that_order_rows_with_their_defaults() -> None:
    of_table = {PLAN_NAMES.get(name, name): default for name, default in defined(TableOptions).items()}
    own = shown(plan_epoch)
    ungrouped = {each for name in own for each in GROUPED.get(name, {name})}
    assert {each.name for each in fields(PlanOptions)} - PART_OF_EPOCH <= ungrouped
    # How many workers a loader has depends on the machine; a plan has to say it.
    assert {name for name in own if of_table.get(name, own[name]) != own[name]} == {"num_workers"}
    types = {PLAN_NAMES.get(name, name): each for name, each in hints(TableOptions).items()}
    differ = {name for name, each in hints(plan_epoch).items() if types.get(name, each) != each}
    assert differ == {"num_ranks", "num_workers"}


def test_every_parameter_of_a_plan_is_explained() -> None:
    text = re.search(r"Args:\n(.*?)\n\n", inspect.getdoc(plan_epoch) or "", re.DOTALL)
    assert text is not None
    assert set(shown(plan_epoch)) <= set(re.findall(r"\w+", text[1]))


@pytest.mark.parametrize(("function", "entry"), DOORS)
def test_help_has_the_text_of_every_option_by_tier(function: Any, entry: Door) -> None:
    told = " ".join((inspect.getdoc(function) or "").split())
    places = []
    for title in door.TIERS.values():
        assert f" {title}: " in told
        places.append(told.index(f" {title}: "))
    assert places == sorted(places)
    for each in entry.options.values():
        assert each.metadata["text"].endswith(".")
        assert f"{each.name}: {each.metadata['text']}" in told


def test_the_page_of_options_is_made_of_the_definitions(script: ModuleType) -> None:
    assert script.PAGE.read_text() == script.page(), "run python scripts/write_options.py"


def test_the_stubs_are_made_of_the_definitions(script: ModuleType) -> None:
    stubs = script.stubs()
    assert len(stubs) == 6
    for path, text in stubs.items():
        assert path.read_text() == text, "run python scripts/write_options.py"


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("bucket_by", "token_batches=TokenBatches(column)"),
        ("max_tokens_per_batch", "token_batches=TokenBatches(column, max_tokens=...)"),
        ("pad_to_multiple_of", "pad_to_multiple_of=...)"),
        ("padding_free", "padding_free=True)"),
        ("num_lanes", "lanes=Lanes(num_lanes)"),
        ("lane_rows", "lanes=Lanes(num_lanes, rows=...)"),
        ("decode_threads", "decoding=Decoding(threads=...)"),
        ("tokenizer", "pack=pack_tokens(column, sequence_length, tokenizer=...)"),
        ("decode_ahead_bytes", "decoding=Decoding(ahead_bytes=...)"),
        ("page_checksums", "decoding=Decoding(page_checksums=...)"),
    ],
)
@pytest.mark.parametrize("make", [*DATASETS, *(each.create_dataloader for each in DATASETS), RowDataset])
def test_a_part_of_a_group_is_answered_with_the_group(make: Any, name: str, now: str) -> None:
    with pytest.raises(ConfigError, match=f"Unknown option '{name}'; pass .*{re.escape(now)}"):
        make("missing", **{name: 1})


def test_a_scan_of_a_table_takes_no_inventory() -> None:
    with pytest.raises(ConfigError, match="Unknown option 'inventory'"):
        scan_iceberg("db.t", None, inventory=None)
    with pytest.raises(ConfigError, match="Unknown option 'inventory'"):
        scan_delta("t", inventory=None)


def test_secrets_are_not_printed() -> None:
    secret = {"key": "canary-1234"}
    sources = [
        FileSource(path="a", storage_options=secret),
        DeltaSource(table="a", storage_options=secret),
        IcebergSource(table="a", storage_options=secret, catalog_config=secret),
    ]
    assert "canary" not in repr(sources)


def test_an_unknown_option_is_still_an_error_of_ours() -> None:
    with pytest.raises(ConfigError, match="did you mean 'shuffle_rows'"):
        IcebergDataset.create_dataloader("db.t", None, shufle_rows=3)


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("seed", "did you mean 'shuffle_seed'"),
        ("world_size", "did you mean 'num_ranks'"),
        ("xyzzy", r"Everyday options are .*'batch_size'.*'shuffle_seed'.*; help\(\) has all"),
        ("pin_memry", "did you mean 'pin_memory'"),
    ],
)
def test_options_of_the_table_and_of_the_loader_are_all_told(dataset: Any, option: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"Unknown option '{option}'.*{told}"):
        dataset.create_dataloader("missing", **{option: 3})


@pytest.mark.parametrize("option", ["schema", "text"])
def test_an_option_of_text_files_is_answered_with_scan_files(option: str) -> None:
    with pytest.raises(ConfigError, match=rf"pass inventory=scan_files\(path, format, {option}=\.\.\.\)"):
        StructuredDataset.create_dataloader("missing", "csv", **{option: None})


@pytest.mark.parametrize("option", ["sampler", "batch_sampler"])
def test_a_sampler_is_answered_with_what_takes_its_place(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}= has no use here: .*num_ranks.*RowDataset"):
        StructuredDataset.create_dataloader("missing", **{option: [1]})


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("device", r"batch\.to\(device"),
        ("num_epochs", "set_epoch"),
        ("limit", "leave the loop early"),
        ("delimiter", '"tsv" for tabs'),
        ("header", "names its columns"),
    ],
)
def test_an_option_of_another_library_is_answered_with_what_to_do(option: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}= is no option: .*{told}"):
        StructuredDataset.create_dataloader("missing", **{option: 1})


def test_every_name_of_elsewhere_stands_for_an_option() -> None:
    known = {*names_of(FileSource, TableOptions, LoaderOptions)}
    assert set(door._ELSEWHERE.values()) <= known
    assert not door._ELSEWHERE.keys() & known
    assert not door._GROUPED.keys() & known
    assert not door._ADVICE.keys() & known
