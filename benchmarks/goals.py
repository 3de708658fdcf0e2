"""How far are the goals of the compiled engine (docs/design/0017)? Runs tabular.py, lanes.py and trainer.py.

    python benchmarks/goals.py [GiB] [runs]

Ratios are to the better of polars and pyarrow in the same run, for batches of 1,024 / 8,192 rows.
"""

import json
import subprocess
import sys
from pathlib import Path

from measure import RESULTS

RATES = {
    "threads, dict": "1.4 / 1.8",
    "threads, stacked": "1.8 / 1.9",
    "threads, rows shuffled": "1.0 / 1.3",
    "threads, rows shuffled, stacked": "1.0 / 1.3",
    "2 processes, dict": "1.0 / 1.3",
    "2 processes, stacked": "1.0 / 1.3",
    "2 processes, light transform": "0.5 / 0.9",
}


def rows_of(name):
    """The rows of a script's result, by case."""
    return {row["case"]: row for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]}


def main():
    gib = sys.argv[1] if len(sys.argv) > 1 else "1"
    runs = sys.argv[2] if len(sys.argv) > 2 else "3"
    for script in ("tabular", "lanes", "trainer"):
        command = [sys.executable, str(Path(__file__).with_name(f"{script}.py")), gib, runs]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    tabular, lanes, trainer = map(rows_of, ("tabular", "lanes", "trainer"))
    found = []
    for case, goal in RATES.items():
        ratios = [tabular[f"{case}, batch {batch}"]["of_limit"] for batch in (1024, 8192)]
        found.append((case, goal, " / ".join(f"{ratio:.2f}" for ratio in ratios)))
    found.append(
        ("8 lanes of 256 rows, of none", "0.85", f"{lanes['8 lanes, micro-batches of 256 rows']['of_limit']:.2f}")
    )
    for case, row in trainer.items():
        found.append((f"a trainer's step beside the loader, {case}", "1.03", f"{row['beside_of_alone']:.3f}"))
        if "lock" in row:
            found.append((f"time with the lock, {case}", "3%", f"{row['lock']:.0%}"))
    print(f"{'':<56}{'goal':>12}{'now':>14}")
    for what, goal, now in found:
        print(f"{what:<56}{goal:>12}{now:>14}")


if __name__ == "__main__":
    main()
