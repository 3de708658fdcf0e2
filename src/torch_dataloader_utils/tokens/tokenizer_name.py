"""A name for a tokenizer, by which another run can tell whether it has the same one."""

import operator
import sys
from typing import Any

from torch_dataloader_utils.errors import ConfigTypeError, of_type


def name_tokenizer(tokenizer: Any) -> str | int | None:
    """Its `fingerprint`, else the name under which its module has it; None if it has neither.

        def tokenize(texts): ...              "my_module.tokenize"
        lambda texts: ...                     None, and so are closures, partials, bound methods and instances:
                                              others have the same name

    Raises:
        ConfigTypeError: a fingerprint that is neither text nor a number.
    """
    fingerprint = getattr(tokenizer, "fingerprint", None)
    if isinstance(fingerprint, str | int):
        return fingerprint
    if fingerprint is not None:
        raise ConfigTypeError(
            f"The fingerprint of the tokenizer is {of_type(fingerprint)}: give an attribute or a property that "
            "is a text, such as the model's name and revision."
        )
    module, name = getattr(tokenizer, "__module__", None), getattr(tokenizer, "__qualname__", None)
    if module not in sys.modules or not isinstance(name, str):
        return None
    try:
        found = operator.attrgetter(name)(sys.modules[module])
    except AttributeError:
        return None
    return f"{module}.{name}" if found is tokenizer else None
