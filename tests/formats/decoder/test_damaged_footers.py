"""A footer with any one bit changed gives the rows that pyarrow gives, or is refused where pyarrow refuses it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine import needs_engine

pytestmark = [
    pytest.mark.processes,
    needs_engine,
]

EACH_BIT = """
import json, sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from tests.formats.decoder.test_decoder import outcome, rewritten
from tests.formats.files import write_parquet

path, options, step = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
lists = pa.array([[1, 2], [3], [], [4], None], pa.list_(pa.int64()))
table = pa.table({"i": pa.array(range(5), pa.int32()), "d": np.arange(5) / 3, "l": lists})
(task,) = write_parquet(path, table, compression="none", **options)
schema, whole = pq.read_schema(path), path.read_bytes()
first = 8 * (len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"))
for bit in range(first, 8 * (len(whole) - 8), step):
    changed = bytearray(whole)
    changed[bit // 8] ^= 1 << bit % 8
    damaged = rewritten(task, bytes(changed))
    ours, other = (outcome(damaged, schema, is_compiled=each) for each in (True, False))
    names = [each.__name__ if isinstance(each, type) else "rows" for each in (ours, other)]
    print(json.dumps([bit, *names, ours == other]), flush=True)
"""


# Every third bit is of every place in a byte.
@pytest.mark.cases(1)
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("options", [{"use_dictionary": False}, {"use_dictionary": True, "write_statistics": False}])
def test_a_flip_of_any_bit_of_a_footer_has_the_verdict_of_pyarrow(
    tmp_path: Path, options: dict[str, bool], step: int
) -> None:
    """The type of a chunk, what may be null, the levels of lists: a footer says them twice, and pyarrow compares."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EACH_BIT, str(tmp_path / "a.parquet"), json.dumps(options), str(step)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(verdicts) > 4000 // step
    assert sum(ours == "rows" for _, ours, _, _ in verdicts) > 1000 // step
    assert [verdict for verdict in verdicts if not verdict[-1]] == []
