"""Checks what a user passes, once, where it comes in, so that all other code can trust it.

In: the name of an option and its value. Out: the value as Python's own int, float, bool or tuple, or the same frozen
dataclass with such fields. numpy's numbers are taken; texts as numbers or flags are not.

Promises: a wrong type is a ConfigTypeError, a wrong value a ConfigError; both name the option and say what to pass. A
state that does not fit is a CheckpointMismatchError. Not for checks that depend on the data or on another option.
"""
