"""Errors of ours cross process borders, also through tools that rebuild them piece by piece."""

import pickle

import pytest

from torch_dataloader_utils import errors

CLASSES = [value for value in vars(errors).values() if isinstance(value, type)]


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_can_be_made_pickled_and_rebuilt(error):
    made = error("what, where, seen and wanted, what to do")
    assert str(made) == "what, where, seen and wanted, what to do"
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is error
    assert again.args == made.args
    rebuilt = error.__new__(error, *made.args)
    assert isinstance(rebuilt, errors.LoaderError)
