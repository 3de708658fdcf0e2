"""Hypothesis without a deadline and, in CI, without chance."""

import os

from hypothesis import HealthCheck, settings

from tests.effort import EFFORT

# Footers of remote files are not kept on the host that runs the tests.
os.environ.setdefault("TORCH_DATALOADER_UTILS_CACHE", "off")

settings.register_profile(
    "dev", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=100 * EFFORT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))
