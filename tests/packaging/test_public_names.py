"""What type checkers see of the top level is what a program gets there."""

import ast
import inspect

import pytest

import torch_dataloader_utils as package


def names_for_type_checkers() -> dict[str, str]:
    """Name -> module of what is imported for type checkers alone."""
    tree = ast.parse(inspect.getsource(package))
    (block,) = [each for each in tree.body if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING"]
    imports = [each for each in block.body if isinstance(each, ast.ImportFrom)]
    assert len(imports) == len(block.body)
    aliases = [(alias, each.module or "") for each in imports for alias in each.names]
    # "as" says to type checkers that a name is public.
    assert all(alias.asname == alias.name for alias, _ in aliases)
    return {alias.name: module for alias, module in aliases}


def test_names_and_their_modules_are_the_same() -> None:
    homes = {name: f"{package.__name__}.{home}" for name, home in package._HOME_OF.items()}
    assert names_for_type_checkers() == homes
    assert package.__all__ == dir(package) == sorted(homes)


def test_every_name_is_there_and_no_other() -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_type_checkers_see_no_getattr() -> None:
    tree = ast.parse(inspect.getsource(package))
    assert not any(isinstance(each, ast.FunctionDef) and each.name == "__getattr__" for each in tree.body)
