"""A mark for tests of compiled code."""

import pytest

from torch_dataloader_utils import _engine

needs_engine = pytest.mark.skipif(not _engine.IS_BUILT, reason="the package was installed without a compiler")
