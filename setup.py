"""The compiled decoder, which the package does without where there is no compiler. All else is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

DECODER = Path("src/torch_dataloader_utils/_decoder")

setup(
    ext_modules=[
        Extension(
            "torch_dataloader_utils._decoder._numbers",
            [
                f"src/torch_dataloader_utils/_decoder/{name}.c"
                for name in ("module", "chunk", "lists", "values", "codecs", "footer", "thrift")
            ],
            depends=[f"src/torch_dataloader_utils/_decoder/{name}.h" for name in ("decoder", "thrift")],
            extra_compile_args=["-O3", "-Wall", "-Wextra"],
            libraries=["dl"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
