"""The compiled decoder, which the package does without where there is no compiler, and the text of an index.

All else is in pyproject.toml.
"""

import os
import re
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

# An index shows README.md alone, so that its links need the address of the repository: EPOCHPLAN_URL=https://...
URL = os.environ.get("EPOCHPLAN_URL", "").rstrip("/")
README = Path("README.md").read_text(encoding="utf-8")
SHOWN = {
    "long_description": re.sub(
        r"(!?)\[([^]]*)\]\((?!https?:|#)",
        lambda link: f"{link[1]}[{link[2]}]({URL}/{'raw' if link[1] else 'blob'}/main/",
        README,
    )
    if URL
    else README,
    "long_description_content_type": "text/markdown",
    # The address of Help stands below the messages of errors (errors.py).
    "project_urls": {
        "Repository": URL,
        "Changes": f"{URL}/blob/main/CHANGELOG.md",
        "Help": f"{URL}/blob/main/docs/troubleshooting.md",
    }
    if URL
    else {},
}

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    # Free-threaded Python has no stable ABI before 3.15, and the decoder was never tried there.
    setup(**SHOWN)
else:
    setup(
        **SHOWN,
        ext_modules=[
            Extension(
                "torch_dataloader_utils._engine._numbers",
                [
                    f"src/torch_dataloader_utils/_engine/{name}.c"
                    for name in (
                        *("module", "chunk", "lists", "values", "convert", "codecs", "gather", "permute", "picks"),
                        *("footer", "check", "thrift", "json"),
                    )
                ],
                depends=[f"src/torch_dataloader_utils/_engine/{name}.h" for name in ("engine", "thrift")],
                extra_compile_args=["-O3", "-ffp-contract=off", "-Wall", "-Wextra"],
                libraries=["dl"],
                py_limited_api=True,
                optional=True,
            )
        ],
        options={"bdist_wheel": {"py_limited_api": "cp311"}},
    )
