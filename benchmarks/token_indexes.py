"""Token corpora: sample index, blends, packing arithmetic, building from Parquet, reading samples.

    python benchmarks/token_indexes.py [--tokens 200000000] [--rounds 7]

Times are processor seconds of one thread, least of the rounds, in milliseconds unless said otherwise. The pass that the
sample index is compared with walks the document lengths in the shuffled order and adds them up, which is the least
that any way to find the samples has to do; the plain sum of the lengths in file order is shown too. Where megatron-core
is installed, its compiled index builders run on the same arrays.
"""

import argparse
import importlib
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import alternate, print_machine, save

from torch_dataloader_utils.megatron.corpora import (
    GPTDataset,
    GPTDatasetConfig,
    IndexedDataset,
    Split,
    blend_by_weight,
    build_corpus,
)
from torch_dataloader_utils.megatron.corpora.sample_index import build_indices, build_sample_index, plan_epochs
from torch_dataloader_utils.samples import fill_best_fit, fill_greedily

LENGTH = 2048
OPTIONS = {"sequence_length": LENGTH, "extra_tokens": 1}
BLEND_SAMPLES = 1_000_000

Rows = list[dict[str, Any]]


def measure(run: Callable[[], Any], rounds: int) -> float:
    """Least processor milliseconds of several runs."""
    return compare({"": run}, rounds)[""]


def compare(cases: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The same of several cases, which alternate."""
    spent = alternate(cases, runs=rounds, clock="processor")
    return {name: min(each) * 1e3 for name, each in spent.items()}


def ratio(ours: float, theirs: float | None) -> str:
    """Theirs, and how many times as long ours takes."""
    return "- | -" if theirs is None else f"{theirs:.1f} | {ours / theirs:.2f}"


def find_megatron() -> Any:
    """The compiled helpers of megatron-core, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("megatron.core.datasets.helpers_cpp")
        except ImportError:
            return None


def print_sample_index(tokens: int, rounds: int, megatron: Any) -> Rows:
    print(f"\nSample index of {tokens:,} tokens, samples of {LENGTH}:\n")
    print(
        "| mean document | documents | sum in file order | pass | sample index | ratio | megatron | ratio | all three |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    rows: Rows = []
    for mean in (100, 500, 2000):
        random = np.random.default_rng(0)
        lengths = random.geometric(1 / mean, tokens // mean).astype(np.int32)
        order = np.arange(len(lengths), dtype=np.int32)
        np.random.RandomState(1).shuffle(order)
        found = compare(_index_cases(lengths, order, megatron), rounds)
        once, ours, theirs = found["pass"], found["sample_index"], found.get("megatron")
        print(
            f"| {mean} | {len(lengths):,} | {found['sum']:.2f} | {once:.2f} | {ours:.2f} | {ours / once:.2f} "
            f"| {ratio(ours, theirs)} | {found['all_three']:.0f} |"
        )
        rows.append({"mean_document": mean, "documents": len(lengths), **found})
    return rows


def _index_cases(lengths: Any, order: Any, megatron: Any) -> dict[str, Callable[[], Any]]:
    total = int(lengths.sum())
    plan = plan_epochs(total, sequence_length=LENGTH, extra_tokens=1, num_samples=None)
    cases: dict[str, Callable[[], Any]] = {
        "sum": lambda: lengths.sum(dtype=np.int64),
        "pass": lambda: np.cumsum(lengths[order], dtype=np.int64),
        "sample_index": lambda: build_sample_index(lengths, order, sample_count=plan.sample_count, **OPTIONS),
        "all_three": lambda: build_indices(lengths, range(len(lengths)), plan, seed=1, **OPTIONS),
    }
    if megatron is not None:
        cases["megatron"] = lambda: megatron.build_sample_idx_int32(lengths, order, LENGTH, 1, total, True, 1)
    return cases


def print_blends(rounds: int, megatron: Any) -> Rows:
    print(f"\nBlend of {BLEND_SAMPLES:,} samples:\n\n| weights | data sets | ours | megatron | ratio |")
    print("|---|---:|---:|---:|---:|")
    random = np.random.default_rng(0)
    cases = {
        "7 : 2 : 1": [0.7, 0.2, 0.1],
        "Dirichlet": random.dirichlet(np.ones(10)).tolist(),
        "1 / k": (1 / np.arange(1, 51)).tolist(),
        "with two of 1e-5": [0.5, 0.3, 0.2, 1e-5, 1e-5],
        "Dirichlet 0.3": (random.dirichlet(np.full(300, 0.3)) + 1e-9).tolist(),
        "equal": [1.0] * 1000,
    }
    rows: Rows = []
    for name, weights in cases.items():
        found = compare(_blend_cases(weights, megatron), rounds)
        ours, theirs = found["ours"], found.get("megatron")
        print(f"| {name} | {len(weights)} | {ours:.1f} | {ratio(ours, theirs)} |")
        rows.append({"weights": name, "data_sets": len(weights), "ours": ours, "megatron": theirs})
    return rows


def _blend_cases(weights: list[float], megatron: Any) -> dict[str, Callable[[], Any]]:
    cases: dict[str, Callable[[], Any]] = {"ours": lambda: blend_by_weight(weights, BLEND_SAMPLES)}
    if megatron is not None:
        arrays = np.zeros(BLEND_SAMPLES, np.int16), np.zeros(BLEND_SAMPLES, np.int64)
        shares = (np.array(weights) / np.sum(weights)).tolist()
        cases["megatron"] = lambda: megatron.build_blending_indices(*arrays, shares, len(shares), BLEND_SAMPLES, False)
    return cases


def print_fill(tokens: int, rounds: int) -> Rows:
    lengths = np.random.default_rng(0).geometric(1 / 500, tokens // 500)
    total = int(lengths.sum())
    print(f"\nPacking arithmetic of {len(lengths):,} documents, {total:,} tokens, samples of {LENGTH}:\n")
    print("| way | ms | million tokens/s | fill |\n|---|---:|---:|---:|")
    ways: dict[str, Callable[[], Any]] = {
        "greedy": lambda: fill_greedily(lengths, LENGTH),
        "best fit, window 1,000": lambda: fill_best_fit(lengths, LENGTH, window_documents=1000),
        "best fit, window 10,000": lambda: fill_best_fit(lengths, LENGTH, window_documents=10_000),
    }
    rows: Rows = []
    for name, run in ways.items():
        spent = measure(run, max(1, rounds // 3))
        pieces = run()
        fill = int((pieces.stop - pieces.start).sum()) / (pieces.sample_count * LENGTH)
        print(f"| {name} | {spent:.0f} | {total / spent / 1e3:.0f} | {fill:.2%} |")
        rows.append({"way": name, "milliseconds": spent, "fill": fill})
    return rows


def print_corpus(directory: Path, rounds: int) -> dict[str, float]:
    random = np.random.default_rng(0)
    counts = random.geometric(1 / 500, 40_000)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    values = random.integers(0, 50_000, offsets[-1]).astype(np.int32)
    column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))
    pq.write_table(pa.table({"tokens": column}), directory / "x.parquet", row_group_size=4000)
    file = pq.ParquetFile(directory / "x.parquet")
    groups = range(file.num_row_groups)
    bare = measure(lambda: [file.read_row_group(group, use_threads=False) for group in groups], max(1, rounds // 2))
    build = measure(
        lambda: build_corpus(
            directory / "x.parquet", directory / "c", column="tokens", vocabulary_size=50_000, overwrite=True
        ),
        max(1, rounds // 2),
    )
    print(
        f"\nCorpus of {len(values):,} tokens from Parquet: decode alone {bare:.0f} ms, build with join {build:.0f} ms"
    )
    found = {"decode_milliseconds": bare, "build_milliseconds": build}
    print(f"\nReading samples of {LENGTH}, microseconds each:\n\n| reader | sequence | GPT sample |\n|---|---:|---:|")
    for name, mmap in (("mapped", True), ("plain file", False)):
        corpus = IndexedDataset(str(directory / "c"), mmap=mmap)
        picks = random.integers(0, len(corpus), 5000).tolist()
        one = measure(lambda c=corpus, p=picks: [c[i] for i in p], rounds) / len(picks) * 1e3
        config = GPTDatasetConfig(random_seed=1, sequence_length=LENGTH, create_attention_mask=False)
        dataset = GPTDataset(corpus, None, range(len(corpus)), None, Split.train, config)
        sample = measure(lambda d=dataset: [d[i] for i in range(2000)], rounds) / 2000 * 1e3
        print(f"| {name} | {one:.1f} | {sample:.1f} |")
        found |= {f"{name}_sequence_microseconds": one, f"{name}_gpt_sample_microseconds": sample}
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=200_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    helpers = find_megatron()
    print_machine()
    if helpers is None:
        print("the compiled helpers of megatron-core are not installed: not measured")
    figures: dict[str, Any] = {"sample_index": print_sample_index(arguments.tokens, arguments.rounds, helpers)}
    figures["blends"] = print_blends(arguments.rounds, helpers)
    figures["fill"] = print_fill(arguments.tokens, arguments.rounds)
    with tempfile.TemporaryDirectory() as scratch:
        figures["corpus"] = print_corpus(Path(scratch), arguments.rounds)
    save("token_indexes", **vars(arguments), **figures)
