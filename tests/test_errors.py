"""Errors of ours cross process borders, also through tools that rebuild them piece by piece."""

import pickle
import traceback

import pytest

from torch_dataloader_utils import errors

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_can_be_made_pickled_and_rebuilt(error):
    made = error("what, where, seen and wanted, what to do")
    assert str(made) == "what, where, seen and wanted, what to do"
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is error
    assert again.args == made.args
    rebuilt = error.__new__(error, *made.args)
    assert isinstance(rebuilt, errors.LoaderError)


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_a_traceback_names_the_section_about_the_error(error, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_help_page", lambda: "https://example.org/troubleshooting.md")
    made = error("what")
    made.add_note("and where")
    again = pickle.loads(pickle.dumps(made))
    for each in (made, again):
        lines = traceback.format_exception_only(each)
        assert lines[-2:] == [
            f"Help: https://example.org/troubleshooting.md#{error.__name__.lower()}\n",
            "and where\n",
        ]


def test_without_an_address_errors_have_no_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_help_page", lambda: None)
    made = errors.ConfigError("what")
    assert not hasattr(made, "__notes__")
    made.add_note("where")
    assert made.__notes__ == ["where"]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("PRISE", "did you mean 'price'?"),
        ("tax", "the columns are 'price', 'zip', 'user', 'user.age', 'user.home', 'user.home.city'."),
        ("user.zip", "the fields of 'user' are 'user.age', 'user.home', 'user.home.city'."),
        ("user.agee", "did you mean 'user.age'?"),
        ("user.home.zzz", "the fields of 'user.home' are 'user.home.city'."),
        ("usr.age", "did you mean 'user.age', 'user.home'?"),
    ],
)
def test_a_wrong_name_is_compared_with_the_fields_of_its_struct(name, advice):
    assert errors.which_column(name, ["price", "zip", "user", "user.age", "user.home", "user.home.city"]) == advice
