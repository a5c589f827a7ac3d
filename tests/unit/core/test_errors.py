import pytest

from boxwright.core import errors
from boxwright.core.errors import BoxwrightError, MissingDependencyError, UsageError, suggest


def test_every_error_is_a_boxwright_error():
    found = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert found == {
        "BoxwrightError",
        "BudgetError",
        "CheckpointError",
        "ConversionError",
        "DataError",
        "MissingDependencyError",
        "UsageError",
        "WorkerError",
    }
    assert all(issubclass(getattr(errors, name), BoxwrightError) for name in found)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("BoxwrightError", 1),
        ("WorkerError", 1),
        ("MissingDependencyError", 1),
        ("UsageError", 2),
        ("DataError", 3),
        ("CheckpointError", 4),
        ("ConversionError", 5),
        ("BudgetError", 6),
    ],
)
def test_the_exit_code_tells_the_kind_of_failure(name: str, code: int):
    assert getattr(errors, name)("why").exit_code == code


def test_errors_can_be_caught_as_what_python_calls_them():
    assert issubclass(UsageError, ValueError)
    assert issubclass(MissingDependencyError, ImportError)


def test_the_message_is_the_whole_text():
    assert str(MissingDependencyError("Run: pip install x")) == "Run: pip install x"
    assert str(UsageError("Use 'ray'.")) == "Use 'ray'."


@pytest.mark.parametrize(
    ("wrong", "known", "sentence"),
    [
        ("rey", ["spawn", "ray"], " Did you mean 'ray'?"),
        ("max_epch", ["max_lr", "max_epoch"], " Did you mean 'max_epoch'?"),
        ("banana", ["spawn", "ray"], ""),
        ("ray", [], ""),
    ],
)
def test_the_nearest_name_is_suggested(wrong: str, known: list[str], sentence: str):
    assert suggest(wrong, known) == sentence


def test_names_may_come_from_any_iterable():
    assert suggest("catt", (name for name in ("dog", "cat"))) == " Did you mean 'cat'?"
