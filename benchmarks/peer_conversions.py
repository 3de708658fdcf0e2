"""Other loaders that want the table in a format of their own, one sample a row, before they read it.

The conversion runs once and is kept beside the data, with the seconds it took; a pass does not contain it. A sample is
{x: 40 float32, ids: 10 int64, label: int8}, so that three values are collated for a row, and not 51.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from data import STACK
from peer_readers import Pass, drain, files_of, processes
from torch.utils.data import DataLoader

CHUNK_BYTES = 1 << 24


def samples(file: str) -> Iterator[dict[str, Any]]:
    """The rows of a file, as arrays."""
    table = pq.read_table(file)
    matrices = {
        name: np.stack([table[column].to_numpy() for column in columns], axis=1) for name, columns in STACK.items()
    }
    labels = table["label"].to_numpy()
    for row in range(table.num_rows):
        yield {**{name: matrix[row] for name, matrix in matrices.items()}, "label": labels[row]}


def tensor_samples(file: str) -> Iterator[dict[str, Any]]:
    """The rows of a file, as tensors, which litdata stores without a header each."""
    for row in samples(file):
        yield {"x": torch.from_numpy(row["x"]), "ids": torch.from_numpy(row["ids"]), "label": int(row["label"])}


def converted(folder: Path, form: str, convert: Callable[[Path], None]) -> Path:
    """The folder with the converted data, made if it is not there; `seconds_of` says how long that took."""
    target = folder.with_name(f"{folder.name}-{form}")
    if not (target / "seconds.json").exists():
        start = time.perf_counter()
        convert(target / "data")
        (target / "seconds.json").write_text(json.dumps(time.perf_counter() - start))
    return target / "data"


def seconds_of(folder: Path) -> dict[str, float]:
    """Seconds that each conversion of a folder took when it was made."""
    notes = sorted(folder.parent.glob(f"{folder.name}-*/seconds.json"))
    return {note.parent.name.removeprefix(f"{folder.name}-"): json.loads(note.read_text()) for note in notes}


def litdata(folder: Path, batch: int, workers: int) -> Pass:
    """Chunks of litdata, not compressed, of 16 MiB."""
    import litdata as lit

    def convert(target: Path) -> None:
        options = {"chunk_bytes": CHUNK_BYTES, "num_workers": 1, "verbose": False}
        lit.optimize(tensor_samples, inputs=files_of(folder), output_dir=str(target), **options)

    stream = lit.StreamingDataset(str(converted(folder, "litdata", convert)))
    loader = lit.StreamingDataLoader(stream, batch_size=batch, **processes(workers))
    return lambda: drain(loader)


def mosaicml(folder: Path, batch: int, workers: int) -> Pass:
    """MDS shards of mosaicml-streaming, not compressed, of 16 MiB."""
    import streaming

    def convert(target: Path) -> None:
        columns = {"x": "ndarray:float32:40", "ids": "ndarray:int64:10", "label": "int8"}
        with streaming.MDSWriter(out=str(target), columns=columns, size_limit=CHUNK_BYTES) as writer:
            for file in files_of(folder):
                for row in samples(file):
                    writer.write(row)

    local = str(converted(folder, "mosaicml", convert))
    stream = streaming.StreamingDataset(local=local, shuffle=False, batch_size=batch)
    loader = DataLoader(stream, batch_size=batch, **processes(workers))
    return lambda: drain(loader)
