"""Images in a Parquet column: shuffled, decoded in worker processes or threads, averaged, and audited.

python -m examples.images [--threads]
"""

import argparse
import io
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from torch_dataloader_utils import Bytes, StructuredDataset, TensorBatch

FOLDER = Path(".demo/images-example")
ROWS = 600


def write_images() -> None:
    """Two files of JPEGs of one color each, with a number and the color."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(np.array_split(np.arange(ROWS), 2)):
        files = []
        for row in rows:
            file = io.BytesIO()
            Image.new("RGB", (320, 240), (int(row) % 256, 0, 0)).save(file, "JPEG")
            files.append(file.getvalue())
        table = pa.table({"row": rows, "red": rows % 256, "image": files})
        pq.write_table(table, FOLDER / f"{number}.parquet", row_group_size=50)


def decode_file(memory: np.ndarray) -> np.ndarray:
    """The pixels of one JPEG, which is not copied."""
    with Image.open(pa.BufferReader(memory)) as image:
        return np.asarray(image.convert("RGB").resize((112, 112)))


@cache
def pool(process: int) -> ThreadPoolExecutor:
    """The threads of a process; those of its parent are not there after a fork."""
    del process
    return ThreadPoolExecutor(os.cpu_count())


def decode(batch: TensorBatch) -> TensorBatch:
    """The batch with a tensor [rows, 3, 112, 112] in place of the bytes."""
    return with_pixels(batch, map(decode_file, files_of(batch)))


def decode_in_threads(batch: TensorBatch) -> TensorBatch:
    """The same by a pool of threads."""
    return with_pixels(batch, pool(os.getpid()).map(decode_file, files_of(batch)))


def files_of(batch: TensorBatch) -> list[np.ndarray]:
    """The bytes of each row's file, as views of those of all rows."""
    files = batch.ragged("image")
    memory = files.values.numpy()
    return [memory[first:last] for first, last in pairwise(files.offsets.tolist())]


def with_pixels(batch: TensorBatch, pixels) -> TensorBatch:
    """The batch with these pixels, an array [112, 112, 3] a row."""
    batch["image"] = torch.from_numpy(np.stack(list(pixels))).permute(0, 3, 1, 2)
    return batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", action="store_true", help="one worker process with a pool of threads")
    in_threads = parser.parse_args().threads
    write_images()
    loader, dataset = StructuredDataset.create_dataloader(
        FOLDER,
        batch_size=64,
        shuffle=True,
        shuffle_rows=200,
        encode={"image": Bytes()},
        transform=decode_in_threads if in_threads else decode,
        num_workers=1 if in_threads else 2,
    )
    for epoch in range(2):
        dataset.set_epoch(epoch)
        rows: list[int] = []
        for batch in loader:
            assert (batch["image"][:, 0].float().mean((1, 2)) - batch["red"]).abs().max() < 4, (
                "images are of other rows"
            )
            rows += batch["row"].tolist()
        assert sorted(rows) == list(range(ROWS))
        print(f"epoch {epoch}: {len(rows)} images, each once, with its own row")


if __name__ == "__main__":
    main()
