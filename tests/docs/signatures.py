"""Signatures on the pages of the reference: of functions that bind options, the options, and not `*args, **options`.

mkdocstrings reads sources, where such a function has only its docstring and a line that binds its arguments. mkdocs.yml
names this file.
"""

import inspect
from importlib import import_module
from typing import Any

import griffe


class OptionSignatures(griffe.Extension):
    """Takes over the names and defaults that `Door.explains` gave a function; the page of options has the types."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Set the parameters of one function."""
        if not any(str(each.value).endswith(".explains") for each in func.decorators):
            return
        found = import_module(func.module.path)
        for name in func.path.removeprefix(f"{func.module.path}.").split("."):
            found = getattr(found, name)
        func.parameters = griffe.Parameters(
            *(
                griffe.Parameter(
                    each.name,
                    kind=griffe.ParameterKind(each.kind.description),
                    default=None if each.default is each.empty else repr(each.default),
                )
                for each in inspect.signature(found).parameters.values()
            )
        )
