"""Names from files, models and data sets on their way to a terminal or a spreadsheet."""

import re
from collections.abc import Sequence

# C0 and C1 (escape codes among them), and the marks that reverse the direction of what follows.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_FORMULA = ("=", "+", "-", "@")


def printable(text: str, *, lines: bool = True) -> str:
    r"""Return a text with its control characters as escapes, so that no name can write to the terminal.

    Args:
        text: what is printed.
        lines: keep line breaks and tabs; False for a single name.

    Example:
        >>> printable("a\x1b[31m.jpg"), printable("one\ntwo", lines=False)
        ('a\\x1b[31m.jpg', 'one\\ntwo')
    """
    if text.isprintable():  # the usual case, and cheap
        return text
    if not lines:
        text = text.replace("\t", "\\t").replace("\n", "\\n")
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def csv_cell(text: str) -> str:
    """Return a name as a CSV cell, with control characters as escapes.

    A name that a spreadsheet would evaluate gets a leading apostrophe.

    Example:
        >>> csv_cell("=1+1"), csv_cell("cat")
        ("'=1+1", 'cat')
    """
    text = printable(text, lines=False)
    return f"'{text}" if text.startswith(_FORMULA) else text


def text_table(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    r"""Return rows of cells as aligned lines; the first row is the heading.

    Args:
        rows: of equal length.
        left: how many columns are aligned to the left; the others hold numbers.

    Example:
        >>> text_table([["name", "ms"], ["a", "1.5"], ["b", "10.0"]]).split("\n")
        ['name    ms', '----  ----', 'a      1.5', 'b     10.0']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in [lines[0], "  ".join("-" * w for w in widths), *lines[1:]])
