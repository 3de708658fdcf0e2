"""How hard properties are tried: `make nightly` tries each of them twenty times as often."""

import os

EFFORT = 20 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 1
