"""Run all cases and write docs/conformance.md. Exits with 1 if this library gave other rows than were written.

python -m scripts.conformance
"""

import datetime
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from scripts.conformance import delta, iceberg, parquet
from scripts.conformance.matrix import DIFFERENT, OURS, Format, Verdict, judge, section

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
PACKAGES = ("pyarrow", "polars", "duckdb", "fastparquet", "pyiceberg", "deltalake")
HEAD = """# Conformance

Which features of Parquet, Iceberg and Delta this library reads, row by row. The named program wrote the data of each
line. This library (all rows of two ranks) and other readers read it.

- **exact**: the rows are the rows that were written, with all their values. Of data that other engines wrote
  ("various"), nobody here knows the rows; there it means that readers agree with this library.
- **other rows**: a reader gives other rows or other values.
- **a number of rows**: nobody knows the rows, and no two readers agree.
- **refused**: the reader raises an error. The first words of the error follow.

`make conformance` writes this page, which has nothing that was not run. It was run {when} with Python {python} and
{versions}.

"""


def main() -> int:
    """Write the page, and return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        found = [(each, run(each, Path(folder) / each.name)) for each in (parquet.FORMAT, iceberg.FORMAT, delta.FORMAT)]
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    head = HEAD.format(when=f"on {datetime.date.today():%Y-%m-%d}", python=platform.python_version(), versions=versions)
    PAGE.write_text(head + "\n".join(section(each, verdicts) for each, verdicts in found))
    wrong = [each for _, verdicts in found for each in verdicts if each.cells[OURS] == DIFFERENT]
    for each in wrong:
        print(f"OTHER ROWS: {each.case.feature}, written by {each.case.writer}")
    print(f"{sum(len(verdicts) for _, verdicts in found)} cases: {PAGE}")
    return 1 if wrong else 0


def run(of: Format, folder: Path) -> list[Verdict]:
    """Judge all cases of a format."""
    return [judge(case, of, folder / str(number)) for number, case in enumerate(of.cases)]


if __name__ == "__main__":
    sys.exit(main())
