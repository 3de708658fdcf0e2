"""Batches on a real GPU, which long kernels and late copies keep behind; test_device_copies.py has a simulated one.

test_device.py runs on a GPU too, where there is one.
"""

import itertools
import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tests.stream.tables import check_batch, write_table
from torch_dataloader_utils import DevicePrefetcher, Ragged, StructuredDataset, pack_tokens
from torch_dataloader_utils.errors import TransformError
from torch_dataloader_utils.samples import document_block_mask, flash_attn_arguments, thd_cu_seqlens

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

SOME_MILLISECONDS = 5_000_000  # in cycles of a GPU
OPTIONS = {"batch_size": 64, "shuffle": True, "num_workers": 0}
NUM_BATCHES = 25


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, [[500, 300], [90], [640, 70]])
    return str(folder)


def load(table, **options):
    return StructuredDataset.create_dataloader(table, **OPTIONS | options)[0]


def delay_copies(prefetcher):
    """What is copied from now on comes some milliseconds later."""
    with torch.cuda.stream(prefetcher._find_copies()._stream):
        torch.cuda._sleep(SOME_MILLISECONDS)


@pytest.mark.parametrize("late", ["copies", "steps", "both"])
@pytest.mark.parametrize("depth", [1, 3])
def test_steps_see_their_own_batch_however_late_they_and_the_copies_are(table, depth, late):
    expected = [check_batch(batch) for batch in load(table)]
    prefetcher = DevicePrefetcher(load(table), "cuda", depth=depth)
    seen = []
    for _ in range(2):
        prefetcher.set_epoch(0)
        for batch in prefetcher:
            if late != "copies":
                torch.cuda._sleep(SOME_MILLISECONDS)
            seen.append(batch["row"] * 3 + batch["payload"])  # when the device comes to it; the batch is not kept
            if late != "steps":
                delay_copies(prefetcher)
    computed = [3 * row + row * 7919 % 1000003 for rows in expected for row in rows]
    assert torch.cat(seen).tolist() == computed * 2


@pytest.mark.parametrize("depth", [1, 3])
def test_batches_that_are_kept_stay_as_they_are(table, depth):
    expected = [check_batch(batch) for batch in load(table)]
    prefetcher = DevicePrefetcher(load(table), "cuda", depth=depth)
    kept = []
    for batch in prefetcher:
        delay_copies(prefetcher)
        kept.append(batch)
    assert {batch["row"].device.type for batch in kept} == {"cuda"}
    assert [check_batch(batch) for batch in kept] == expected


def uploads(run):
    """The copies to the device that a call makes, by the profiler's names."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    return [event.name for event in profile.events() if "HtoD" in event.name]


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
@pytest.mark.parametrize("form", [{}, {"stack": {"x": ["row", "payload"]}}, {"transform": lambda b: {"in": dict(b)}}])
def test_each_batch_is_one_copy_from_page_locked_memory(table, form):
    prefetcher = DevicePrefetcher(load(table, columns=["row", "payload", "file"], **form), "cuda")
    list(prefetcher)  # what CUDA does at first is not counted
    prefetcher.set_epoch(1)
    assert uploads(lambda: list(prefetcher)) == ["Memcpy HtoD (Pinned -> Device)"] * NUM_BATCHES
    pinned = list(load(table, columns=["row", "payload", "file"], pin_memory=True))
    assert uploads(lambda: [batch.to("cuda", non_blocking=True) for batch in pinned]) == (
        ["Memcpy HtoD (Pinned -> Device)"] * NUM_BATCHES
    )
    pageable = list(load(table, columns=["row", "payload", "file"]))
    assert len(uploads(lambda: [batch.to("cuda") for batch in pageable])) == NUM_BATCHES


def test_nothing_waits_for_the_device(table):
    prefetcher = DevicePrefetcher(load(table), "cuda", depth=NUM_BATCHES)
    list(prefetcher)  # new memory, of either kind, makes the host wait
    prefetcher.set_epoch(1)
    pinned = list(load(table, pin_memory=True))
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode is new
        torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(100 * SOME_MILLISECONDS)
        batches = [*prefetcher, *(batch.to("cuda", non_blocking=True) for batch in pinned)]
        assert not torch.cuda.current_stream().query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(batches) == 2 * NUM_BATCHES


def active_bytes(when):
    """Device memory that is in use, or was freed before a stream had come by."""
    return torch.cuda.memory_stats()[f"active_bytes.all.{when}"]


def test_the_device_holds_as_few_batches_as_promised(tmp_path):
    batch_bytes, depth, count = 1 << 20, 2, 40
    numbers = pa.table({"x": pa.array(range(batch_bytes // 8 * count))})
    pq.write_table(numbers, tmp_path / "a.parquet", row_group_size=batch_bytes // 4)
    loader, _ = StructuredDataset.create_dataloader(tmp_path, batch_size=batch_bytes // 8, num_workers=0)
    prefetcher = DevicePrefetcher(loader, "cuda", depth=depth)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = active_bytes("current")
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    for epoch in range(3):
        prefetcher.set_epoch(epoch)
        for batch in prefetcher:
            torch.cuda._sleep(SOME_MILLISECONDS // 5)
            total += batch["x"].sum()
    rows = len(numbers)
    assert total.item() == 3 * rows * (rows - 1) // 2
    copies = prefetcher._find_copies()
    assert len(copies._free) + len(copies._busy) <= depth + 1
    # What the steps take (a sum, and what it is added to) is less than half of a batch.
    assert active_bytes("peak") - before < (2 * depth + 3.5) * batch_bytes
    del batch, total
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")  # now the allocator sees that streams have come by what was freed
    assert active_bytes("current") <= before


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pinned_batches_are_the_same_batches_on_the_device(table, num_workers):
    expected = [check_batch(batch) for batch in load(table, num_workers=num_workers)]
    moved = []
    for batch in load(table, pin_memory=True, num_workers=num_workers):
        assert batch["row"].is_pinned()
        assert batch["row"].untyped_storage().data_ptr() == batch["payload"].untyped_storage().data_ptr()
        torch.cuda._sleep(SOME_MILLISECONDS)
        moved.append(batch.to("cuda", non_blocking=True))
    assert list(map(check_batch, moved)) == expected


def test_a_pass_that_stops_resumes_on_the_device_at_the_next_batch(table):
    expected = [check_batch(batch) for batch in load(table, num_workers=2)]
    prefetcher = DevicePrefetcher(load(table, num_workers=2), "cuda", depth=3)
    received = [check_batch(batch) for batch in itertools.islice(prefetcher, 7)]
    resumed = DevicePrefetcher(load(table, num_workers=2), "cuda", depth=1)
    resumed.load_state_dict(prefetcher.state_dict())
    assert received + [check_batch(batch) for batch in resumed] == expected


def test_the_error_of_a_transform_comes_after_the_batches_before_it(table):
    calls = itertools.count()

    def transform(batch):
        if next(calls) == 9:
            raise ValueError("a bad day")
        return batch

    prefetcher = DevicePrefetcher(load(table, transform=transform), "cuda", depth=2)
    received = []
    with pytest.raises(TransformError, match="a bad day"):
        received.extend(map(check_batch, prefetcher))
    resumed = DevicePrefetcher(load(table, transform=transform), "cuda")  # calls go on: no error any more
    resumed.load_state_dict(prefetcher.state_dict())
    assert received + [check_batch(batch) for batch in resumed] == [check_batch(batch) for batch in load(table)]


def test_a_ragged_on_the_device_is_the_one_on_the_cpu(tmp_path):
    lengths = [1, 5, 0, 300, 2, 0, 900, 4000, 7, 3]
    rows = [list(range(row * 10_000, row * 10_000 + length)) for row, length in enumerate(lengths)]
    pq.write_table(pa.table({"tokens": pa.array(rows, pa.list_(pa.int32()))}), tmp_path / "a.parquet")
    loader, _ = StructuredDataset.create_dataloader(tmp_path, batch_size=2, num_workers=0)
    on_device = [batch["tokens"] for batch in DevicePrefetcher(loader, "cuda")]
    assert [row for ragged in on_device for row in ragged.to_list()] == rows
    here = Ragged(torch.tensor([7, 8, 9, 4]), torch.tensor([0, 2, 2, 3, 4]))
    there = here.to("cuda")
    for index in (torch.tensor([3, 0]), torch.tensor([-1]), torch.tensor([True, False, True, False])):
        for where in ("cpu", "cuda"):
            assert there[index.to(where)].to_list() == here[index].to_list()
    assert there[::-1].to_list() == here[::-1].to_list()
    assert there.to_padded(-1).tolist() == here.to_padded(-1).tolist()
    assert there.to_padded(max_length=1, side="left").tolist() == here.to_padded(max_length=1, side="left").tolist()
    assert [row.tolist() for row in there.to_nested().unbind()] == here.to_list()
    with pytest.raises(IndexError, match="of 4"):
        there[torch.tensor([4])]


def test_attention_within_the_documents_of_packs(tmp_path):
    documents = [list(range(1, length)) for length in (90, 3, 300, 41, 57, 2, 128, 200, 61, 77)]
    pq.write_table(pa.table({"tokens": documents}), tmp_path / "a.parquet")
    fields = ("tokens", "positions", "cu_seqlens", "document_tokens")
    packing = pack_tokens("tokens", 256, eod=0, fields=fields)
    loader, _ = StructuredDataset.create_dataloader(tmp_path, pack=packing, batch_size=4, num_workers=0)
    (here,), (there,) = loader, DevicePrefetcher(loader, "cuda")
    assert there["tokens"].tolist() == here["tokens"].tolist()
    flat = flash_attn_arguments(there["cu_seqlens"], 256)
    assert flat["cu_seqlens_q"].is_cuda
    assert flat["cu_seqlens_q"].tolist() == flash_attn_arguments(here["cu_seqlens"], 256)["cu_seqlens_q"].tolist()
    for mine, expected in zip(
        thd_cu_seqlens(there["cu_seqlens"], there["document_tokens"], 256),
        thd_cu_seqlens(here["cu_seqlens"], here["document_tokens"], 256),
        strict=True,
    ):
        assert mine.tolist() == expected.tolist()
    mask = document_block_mask(there["cu_seqlens"], 256)
    assert torch.equal(mask.to_dense().cpu(), document_block_mask(here["cu_seqlens"], 256).to_dense())

    query, key, value = torch.randn(3, len(here["tokens"]), 2, 256, 64, dtype=torch.bfloat16, device="cuda")
    dense = torch.zeros_like(query)
    for sample, row in enumerate(here["cu_seqlens"].to_list()):
        for start, stop in itertools.pairwise(row):
            part = (slice(sample, sample + 1), slice(None), slice(start, stop))
            dense[part] = scaled_dot_product_attention(query[part], key[part], value[part], is_causal=True)
    from torch.nn.attention.flex_attention import flex_attention

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it runs without torch.compile
        flex = flex_attention(query, key, value, block_mask=mask)
    tokens_first = [each.transpose(1, 2).reshape(-1, 2, 64) for each in (query, key, value)]
    flash = torch.ops.aten._flash_attention_forward(*tokens_first, *flat.values(), 0.0, True, False)[0]
    assert torch.allclose(flex, dense, atol=0.02)
    assert torch.allclose(flash, dense.transpose(1, 2).reshape(-1, 2, 64), atol=0.02)
