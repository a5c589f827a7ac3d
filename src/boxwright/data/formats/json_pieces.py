"""A long list of objects in a json, decoded piece by piece: all of it at once would take ten times its packed size."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_PIECE = 4 << 20  # bytes that are decoded at once
_CUT = re.compile(rb"\}(?=\s*,\s*\{)")
_MOST_CUTS = 50


def cut_list(text: memoryview, use: Callable[[bytes], T], done: Callable[[], object]) -> Iterator[T]:
    """Yield what `use` makes of a json list, piece by piece; each piece is a list of some of the objects.

    A cut between two braces may be inside an object or a string. Then `use` raises a ValueError, because the piece is
    not valid, and an earlier cut is tried. `done` is called before each.

    Raises:
        ValueError: it is not a list, or no cut makes a list.

    Example:
        >>> import json
        >>> list(cut_list(memoryview(b'[{"a": 1}, {"a": 2}]'), json.loads, done=lambda: None))
        [[{'a': 1}, {'a': 2}]]
    """
    if bytes(text[:1]) != b"[":
        raise ValueError("not a list")
    at, size, end = 1, _PIECE, len(text) - 1
    while at < end:
        done()
        piece = bytes(text[at : min(at + size, end)])
        if at + size >= end:
            yield use(b"[%b]" % piece)
            return
        # Only near the end: a piece holds thousands of objects.
        cuts = [found.end() for found in _CUT.finditer(piece, len(piece) - (size >> 4))]
        for cut in cuts[: -_MOST_CUTS - 1 : -1]:
            with suppress(ValueError):
                yield use(b"[%b]" % piece[:cut])
                at += piece.index(b",", cut) + 1
                break
        else:
            size *= 2  # one object is longer than a piece
