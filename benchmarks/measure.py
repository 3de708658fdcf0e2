"""Alternating runs, medians, a table and a JSON file with the machine; every script in this folder ends here."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(os.environ.get("BENCH_RESULTS", Path(__file__).parent / "results"))
PACKAGES = ("epochplan", "torch", "pyarrow", "numpy", "polars", "datasets", "ray", "litdata")
PACKAGES += ("mosaicml-streaming", "megatron-core", "s3fs", "obstore")
LOAD_BEFORE = os.getloadavg()[0]
# Processor time counts all threads of this process. On a machine on which others work too it says more.
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time, "thread": time.thread_time}


def machine() -> dict[str, Any]:
    """The machine that the figures were measured on, and how busy it was when the script began."""
    model = "unknown"
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES if _version(name)},
        "load_before": LOAD_BEFORE,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def print_machine() -> None:
    """One line: processor, versions, load."""
    about = machine()
    packages = ", ".join(map(" ".join, about["packages"].items()))
    print(f"{about['cpu']}, {about['cores']} cores, load {LOAD_BEFORE:.1f}, Python {about['python']}, {packages}")


def seconds(run: Callable[[], Any], clock: str = "wall") -> float:
    """Seconds of one call."""
    now = CLOCKS[clock]
    start = now()
    run()
    return now() - start


def alternate(cases: Mapping[str, Callable[[], Any]], *, runs: int = 3, clock: str = "wall") -> dict[str, list[float]]:
    """Seconds of every case: one uncounted round, then `runs` rounds in which each case runs once."""
    for run in cases.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(runs):
        for name, run in cases.items():
            times[name].append(seconds(run, clock))
    return times


def fastest(times: Mapping[str, list[float]], cases: Iterable[str]) -> str:
    """That of the cases which has the least median; for `report`, where several readers may be the limit."""
    return min(cases, key=lambda case: statistics.median(times[case]))


def report(
    name: str,
    times: Mapping[str, list[float]],
    *,
    limit: str,
    unit: str,
    amount: float,
    clock: str = "wall",
    **facts: Any,
) -> None:
    """Print and save a table: amount per second and the ratio to the limit, medians of the rounds.

    limit: the case that the others are held against; its rate is amount / seconds like theirs.
    clock: that of `alternate`.
    """
    best = statistics.median(times[limit])
    rows = []
    for case, runs in times.items():
        ratios = [ours / bare for ours, bare in zip(times[limit], runs, strict=True)]
        middle = statistics.median(runs)
        rows.append(
            {
                "case": case,
                "seconds": [round(run, 4) for run in runs],
                f"{unit}/s": amount / middle,
                "of_limit": statistics.median(ratios),
            }
        )
    print(f"\n{name}: {amount:,.0f} {unit}, {clock} clock; limit is {limit!r} ({best:.3f} s)")
    print_machine()
    for row in rows:
        low, high = min(row["seconds"]), max(row["seconds"])
        print(
            f"  {row['case']:<44} {row[f'{unit}/s']:>14,.0f} {unit}/s   {row['of_limit']:>6.3f} of limit"
            f"   {low:.3f} to {high:.3f} s"
        )
    save(name, unit=unit, amount=amount, clock=clock, limit=limit, rows=rows, **facts)


def save(name: str, **figures: Any) -> None:
    """Write the figures, and what they were measured on, to a JSON file of this name."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    result = {"name": name, **figures, "machine": machine()}
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
