"""The compiled decoder, which the package does without where there is no compiler. All else is in pyproject.toml."""

import sysconfig
from pathlib import Path

from setuptools import Extension, setup

ENGINE = Path("src/torch_dataloader_utils/_engine")

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    # Free-threaded Python has no stable ABI before 3.15, and the decoder was never tried there.
    setup()
else:
    setup(
        ext_modules=[
            Extension(
                "torch_dataloader_utils._engine._numbers",
                [
                    f"src/torch_dataloader_utils/_engine/{name}.c"
                    for name in (
                        *("module", "chunk", "lists", "values", "codecs", "gather", "permute"),
                        *("footer", "check", "thrift", "json"),
                    )
                ],
                depends=[f"src/torch_dataloader_utils/_engine/{name}.h" for name in ("engine", "thrift")],
                extra_compile_args=["-O3", "-Wall", "-Wextra"],
                libraries=["dl"],
                py_limited_api=True,
                optional=True,
            )
        ],
        options={"bdist_wheel": {"py_limited_api": "cp311"}},
    )
