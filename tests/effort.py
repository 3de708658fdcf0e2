"""How much each run tries. TIER says which one it is: `make full` all, `make test` what one waits for, `make quick` the
tests that start no process.

    effort(60)                    examples of a property: 60, 15, 10
    @pytest.mark.cases(2)         cases of a parametrised test: all, two, two
    @pytest.mark.full             only in `make full`
    @pytest.mark.processes        not in `make quick`, as it starts processes
    @pytest.mark.slow             nor this, which takes a third of a second or more
"""

import os

TIER = os.environ.get("TIER", "test")


def effort(examples: int) -> int:
    """Return the number of random examples of this run, of those that `make full` tries."""
    if TIER == "full":
        return examples
    return min(10, examples) if TIER == "quick" else max(examples // 4, min(10, examples))


def spread(count: int, most: int) -> set[int]:
    """Return up to `most` numbers below `count`, evenly spaced: spread(9, 3) is {0, 4, 8}."""
    if count <= most or most == 1:
        return set(range(min(count, most)))
    return {round(number * (count - 1) / (most - 1)) for number in range(most)}
