"""How hard properties are tried: `make nightly` tries each of them twenty times as often, `make quick` ten times."""

import os


class _Few:
    """A factor of `make quick`: 300 * EFFORT is 10."""

    def __rmul__(self, examples: int) -> int:
        return min(10, examples)


EFFORT = {"nightly": 20, "quick": _Few()}.get(os.environ.get("HYPOTHESIS_PROFILE", ""), 1)
