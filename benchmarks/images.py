"""How fast do images in a Parquet column become tensors, beside `datasets` on the same files and with the same decoder?

python benchmarks/images.py [images] [runs]

JPEGs of 320 x 256 (25 KB) in four files, row groups of 100; Pillow decodes and makes each 224 x 224. The limit is
pyarrow and as many threads as there are cores. Before that, a table of bytes alone.
"""

import io
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from data import made_once
from measure import alternate, report
from PIL import Image
from torch.utils.data import DataLoader

from torch_dataloader_utils import Bytes, StructuredDataset, TensorBatch

SIZE = (224, 224)
BATCH = 64
CORES = len(os.sched_getaffinity(0))


def images(count: int) -> Path:
    """Files of so many images."""

    def write(folder: Path) -> None:
        random = np.random.default_rng(0)
        for number in range(4):
            rows = [jpeg(random) for _ in range(count // 4)]
            table = pa.table({"image": pa.array(rows, pa.binary()), "label": range(len(rows))})
            pq.write_table(table, folder / f"{number}.parquet", row_group_size=100, compression="none")

    return made_once(f"images-{count}", write)


def jpeg(random: np.random.Generator) -> bytes:
    """A smooth picture with a little noise, of the size of a photograph that was made small."""
    few = Image.fromarray(random.integers(0, 255, (24, 24, 3), dtype=np.uint8))
    smooth = np.asarray(few.resize((320, 256), Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = np.clip(smooth + random.integers(-8, 8, smooth.shape), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noisy).save(file, "JPEG", quality=90)
    return file.getvalue()


def pixels(image: Image.Image) -> np.ndarray:
    """A decoded image as an array [224, 224, 3]."""
    return np.asarray(image.convert("RGB").resize(SIZE, Image.Resampling.BILINEAR))


def decode(memory: Any) -> np.ndarray:
    """The pixels of one file in memory."""
    with Image.open(pa.BufferReader(memory)) as image:
        return pixels(image)


@cache
def pool(process: int) -> ThreadPoolExecutor:
    """The threads of a process; those of another one are not there after a fork."""
    del process
    return ThreadPoolExecutor(CORES)


def stacked(arrays: Iterable[np.ndarray]) -> torch.Tensor:
    """Arrays of images as one tensor [rows, 3, 224, 224]."""
    return torch.from_numpy(np.stack(list(arrays))).permute(0, 3, 1, 2)


def decoded(batch: TensorBatch, *, in_threads: bool) -> TensorBatch:
    """The batch with its images decoded, in this thread or in a pool."""
    files = batch.ragged("image")
    memory = files.values.numpy()
    rows = [memory[first:last] for first, last in pairwise(files.offsets.tolist())]
    batch["image"] = stacked(pool(os.getpid()).map(decode, rows) if in_threads else map(decode, rows))
    return batch


def ours(folder: Path, **options: Any) -> Callable[[], int]:
    """A pass of this library."""
    loader, _ = StructuredDataset.create_dataloader(folder, batch_size=BATCH, encode={"image": Bytes()}, **options)
    return lambda: sum(batch.num_rows for batch in loader)


def theirs(folder: Path, collate: Callable[[list[Any]], Any], workers: int, feature: Any = None) -> Callable[[], int]:
    """A pass of `datasets`, which reads the same files as a stream."""
    paths = sorted(map(str, folder.glob("*.parquet")))
    rows = datasets.load_dataset("parquet", data_files=paths, split="train", streaming=True)
    if feature is not None:
        rows = rows.cast_column("image", feature)
    loader = DataLoader(rows, batch_size=BATCH, collate_fn=collate, num_workers=workers, persistent_workers=workers > 0)
    return lambda: sum(len(batch["label"]) for batch in loader)


def of_bytes(rows: list[Any]) -> dict[str, Any]:
    """Rows of `datasets` whose images are bytes."""
    return {"image": stacked(decode(row["image"]) for row in rows), "label": [row["label"] for row in rows]}


def of_images(rows: list[Any]) -> dict[str, Any]:
    """Rows of `datasets` whose images it has opened."""
    return {"image": stacked(pixels(row["image"]) for row in rows), "label": [row["label"] for row in rows]}


def as_they_are(rows: list[Any]) -> dict[str, Any]:
    """Rows of `datasets`, as columns."""
    return {name: [row[name] for row in rows] for name in ("image", "label")}


def bare(folder: Path) -> int:
    """pyarrow and a pool of threads."""
    count = 0
    for path in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(BATCH):
            column = batch.column("image")
            rows = [value.as_buffer() for value in column]
            count += len(stacked(pool(os.getpid()).map(decode, rows)))
    return count


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    folder = images(count)
    facts = {"unit": "images", "amount": count, "page_cache": "warm", "batch": BATCH}
    # Before processes are started for the other table.
    cases = {
        "this library, threads, bytes": ours(folder, num_workers=0),
        "datasets, bytes": theirs(folder, as_they_are, 0),
    }
    report("image_bytes", alternate(cases, runs=runs), limit=next(iter(cases)), **facts)
    in_threads, in_turn = partial(decoded, in_threads=True), partial(decoded, in_threads=False)
    cases = {
        "limit: pyarrow, threads": partial(bare, folder),
        "this library, threads": ours(folder, transform=in_threads, num_workers=0),
        "this library, 1 process, threads": ours(folder, transform=in_threads, num_workers=1, persistent_workers=True),
        "this library, 2 processes": ours(folder, transform=in_turn, num_workers=2, persistent_workers=True),
        "datasets, 2 processes, bytes": theirs(folder, of_bytes, 2),
        "datasets, 2 processes, its Image": theirs(folder, of_images, 2, datasets.Image()),
    }
    report("images", alternate(cases, runs=runs), limit=next(iter(cases)), **facts)


if __name__ == "__main__":
    main()
