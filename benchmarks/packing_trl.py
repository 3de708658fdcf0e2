"""How full, how fast and in how much memory are packs of whole documents beside TRL's?

    python benchmarks/packing_trl.py [millions of tokens] [runs]

Best fit of this library against `trl.pack_dataset(strategy="bfd")`, on the same Parquet files: documents with
lognormal lengths, and the text files of this repository (four bytes a token), again and again in random order. A
document longer than a sample keeps its first tokens in both. Every case runs in a process of its own, in turns. The
first epoch goes from the files to the last sample: counting and planning here; reading, packing and writing the packed
data set there. The next epoch goes over the samples again. Memory is the most anonymous memory, looked at every 2 ms,
less what the imports took. The limit of fill is a lower bound of the number of samples (L2 of Martello and Toth); the
limit of speed is pyarrow with a thread a core, which only decodes. Without TRL nothing is measured: pip install
--no-deps trl (1.16 was measured).
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bare import available, groups_of, in_threads, read_lists
from data import made_once, tokens
from measure import print_machine, save

LENGTHS = (4096, 32_768)
CASES = ("limit", "ours", "trl")
BATCH = 8
REPOSITORY = Path(__file__).parents[1]


def repository(millions: int) -> Path:
    """The text files of this repository as documents, in random order, until there are so many tokens."""

    def write(folder: Path) -> None:
        rng = np.random.default_rng(4)
        files = sorted(path for end in ("py", "md", "c") for path in REPOSITORY.glob(f"[!.]*/**/*.{end}"))
        texts = [path.read_bytes() for path in files]
        documents = [np.frombuffer(text[: len(text) // 4 * 4], np.int32) & 0xFFFF for text in texts if len(text) >= 4]
        schema = pa.schema([("tokens", pa.list_(pa.int32()))])
        with pq.ParquetWriter(folder / "part-0.parquet", schema) as writer:
            left = millions * 1_000_000
            while left > 0:
                rows = [documents[number] for number in rng.integers(0, len(documents), 1000)]
                writer.write_table(pa.table([pa.array(rows, schema[0].type)], schema=schema))
                left -= sum(map(len, rows))

    return made_once(f"repository-{millions}", write)


def least_samples(lengths: np.ndarray, length: int) -> int:
    """A number of samples below which no packing of these documents can get."""
    lengths = np.minimum(lengths[lengths > 0], length)
    long = np.sort(lengths[2 * lengths > length])
    short = np.sort(lengths[2 * lengths <= length])
    sums, best = np.concatenate([[0], np.cumsum(short)]), -(-int(lengths.sum()) // length)
    for at, least in zip(*np.unique(short, return_index=True)[::-1], strict=True):
        # Documents too long for any of at least this length get a sample each; the others share what is left.
        shared = long[long <= length - least]
        spare = len(shared) * length - int(shared.sum())
        more = int(sums[-1] - sums[at]) - spare
        best = max(best, len(long) + max(0, -(-more // length)))
    return best


def ours(folder: Path, length: int) -> Iterator[tuple[int, int]]:
    """Two epochs of this library: samples and their tokens, as batches with tokens, positions and boundaries."""
    from torch_dataloader_utils import StructuredDataset, pack_tokens

    packing = pack_tokens(
        "tokens",
        length,
        fill="best_fit",
        over_long="truncate",
        fields=["tokens", "positions", "cu_seqlens", "document_tokens"],
    )
    loader, _ = StructuredDataset.create_dataloader(str(folder), pack=packing, batch_size=BATCH, num_workers=0)
    for epoch in range(2):
        loader.set_epoch(epoch)
        samples = kept = 0
        for batch in loader:
            samples += len(batch["tokens"])
            kept += int(batch["document_tokens"].values.sum())
        yield samples, kept


def trl(folder: Path, length: int) -> Iterator[tuple[int, int]]:
    """Two epochs of TRL's packs, as ragged batches of tensors, without its collator."""
    from datasets import Dataset, disable_progress_bars
    from trl import pack_dataset

    disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        rows = Dataset.from_parquet([str(path) for path in sorted(folder.glob("*.parquet"))], cache_dir=cache)
        packed = pack_dataset(rows, length, strategy="bfd").with_format("torch")
        for _ in range(2):
            samples = kept = 0
            for batch in packed.iter(batch_size=BATCH):
                samples += len(batch["tokens"])
                kept += sum(map(len, batch["tokens"]))
            yield samples, kept


def limit(folder: Path, length: int) -> Iterator[tuple[int, int]]:  # noqa: ARG001
    """Two passes that only decode."""
    for _ in range(2):
        yield 0, in_threads(read_lists, groups_of(folder))


class Memory(threading.Thread):
    """Watches the anonymous memory of this process, in MB above that at its start."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.start_mb = self.most_mb = self.now()
        self.start()

    @staticmethod
    def now() -> float:
        text = Path("/proc/self/status").read_text()
        return int(text.partition("RssAnon:")[2].split()[0]) / 1024

    def run(self) -> None:
        while True:
            self.most_mb = max(self.most_mb, self.now())
            time.sleep(0.002)


def measured(case: str, folder: Path, length: int) -> None:
    """Print the figures of one case, which runs in this process alone."""
    passes = {"ours": ours, "trl": trl, "limit": limit}[case](folder, length)
    memory, seconds, processor = Memory(), [], []
    for _ in range(2):
        begin, used = time.perf_counter(), time.process_time()
        samples, kept = next(passes)
        seconds.append(time.perf_counter() - begin)
        processor.append(time.process_time() - used)
    passes.close()
    figures = {"samples": samples, "tokens": kept, "seconds": seconds, "processor": processor}
    print(json.dumps({**figures, "mb": memory.most_mb - memory.start_mb}))


def in_process(case: str, folder: Path, length: int) -> dict[str, object]:
    """The figures of one case in a new process. The libraries are imported before the clock starts."""
    imports = {"ours": "torch_dataloader_utils.datasets.structured", "trl": "datasets, trl", "limit": "torch"}[case]
    program = f"import {imports}, sys, packing_trl as p; from pathlib import Path; "
    program += f"p.measured({case!r}, Path({str(folder)!r}), {length})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(run.stderr)
    return json.loads(run.stdout.splitlines()[-1])


def main() -> None:
    if not available("trl") or not available("datasets"):
        print("skipped: TRL is not installed. Run: pip install datasets; pip install --no-deps trl")
        return
    millions = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    rows = []
    print_machine()
    for name, folder in (("lognormal", tokens(millions)), ("repository", repository(millions))):
        column = pq.read_table(folder, columns=["tokens"])["tokens"].combine_chunks()
        lengths = np.diff(column.offsets.to_numpy())
        for length in LENGTHS:
            found = {case: [] for case in CASES}
            for _ in range(runs):
                for case in CASES:
                    found[case].append(in_process(case, folder, length))
            kept = int(np.minimum(lengths, length).sum())
            least = least_samples(lengths, length)
            print(f"{name}, {len(lengths):,} documents, {kept:,} tokens kept, L={length:,}")
            print(f"  {'limit':<6} fill {kept / (least * length):.4f}")
            for case, each in found.items():
                middle = {
                    what: [statistics.median(run[what][epoch] for run in each) for epoch in range(2)]
                    for what in ("seconds", "processor")
                }
                fill = kept / (each[0]["samples"] * length) if each[0]["samples"] else None
                if case != "limit" and each[0]["tokens"] != kept:
                    raise SystemExit(f"{case} gave {each[0]['tokens']} of {kept} tokens")
                mb = statistics.median(run["mb"] for run in each)
                rates = [kept / each / 1e6 for each in middle["seconds"]]
                shown = "" if fill is None else f" fill {fill:.4f} "
                print(
                    f"  {case:<6}{shown:>13} first epoch {rates[0]:6.1f}, next {rates[1]:6.1f} M tokens/s; processor "
                    f"{middle['processor'][0]:.2f}, {middle['processor'][1]:.2f} s; {mb:,.0f} MB"
                )
                about = {"documents": name, "length": length, "case": case, "fill": fill, "mb": mb}
                rows.append({**about, "limit_of_fill": kept / (least * length), "tokens": kept, **middle})
    save("packing_trl", rows=rows)


if __name__ == "__main__":
    main()
