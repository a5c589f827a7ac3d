import pytest

from boxwright.core.text import csv_cell, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain café 猫", "plain café 猫"),
        ("\x1b]0;title\x07\x1b[31m", "\\x1b]0;title\\x07\\x1b[31m"),
        ("\x9b31m\x7f\r\x00", "\\x9b31m\\x7f\\r\\x00"),
        ("gpj.\u202eexe", "gpj.\\u202eexe"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("caf\udce9", "caf\udce9"),
    ],
)
def test_control_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_single_name_stays_on_its_line() -> None:
    assert printable("a\nERROR b\t", lines=False) == "a\\nERROR b\\t"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)"])
def test_a_cell_that_a_spreadsheet_would_compute_gets_an_apostrophe(text: str) -> None:
    assert csv_cell(text) == f"'{text}"


def test_a_cell_holds_no_control_characters() -> None:
    assert csv_cell("\t=1\r\n\x1b[31m") == "\\t=1\\r\\n\\x1b[31m"


@pytest.mark.parametrize("text", ["", "cat", "a=b", "12", "'=1"])
def test_other_cells_stay_as_they_are(text: str) -> None:
    assert csv_cell(text) == text
