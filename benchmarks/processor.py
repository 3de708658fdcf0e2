"""Processor seconds of the process, for machines on which others work too: they say more there than the wall clock."""

import time
from collections.abc import Callable, Mapping


def processor_seconds(cases: Mapping[str, Callable[[], object]], *, runs: int) -> dict[str, float]:
    """Least processor seconds of each case, the cases in turn."""
    least = dict.fromkeys(cases, float("inf"))
    for _ in range(runs):
        for name, run in cases.items():
            start = time.process_time()
            run()
            least[name] = min(least[name], time.process_time() - start)
    return least


def print_processor(seconds: Mapping[str, float], *, limit: str, unit: str, amount: float) -> None:
    """A table of amounts a processor second, and the ratio to the limit's."""
    for name, spent in seconds.items():
        print(
            f"  {name:<44} {amount / spent:>14,.0f} {unit} a processor second   {seconds[limit] / spent:.3f} of limit"
        )
