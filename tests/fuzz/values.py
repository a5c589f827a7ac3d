"""Unexpected values, and JSON or YAML trees that contain some of them."""

import json
import math
from random import Random
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 3, 255, 65536, 2**31, 2**32, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.0, 1e-308, 1e308, -1e308, 1e39,
    math.nan, math.inf, -math.inf, True, False,
)  # fmt: skip

TEXTS = (
    "", " ", ".", "..", "/", "~", "-", "--", "\x00", "a\nb", "a\tb", "\x1b[31mred\x1b[0m", "\x9b2J", "=1+1", "@SUM(A1)",
    "é", "漢字", "🎉", "\u202etxt", "\u2028", "\ufeff", "\ud800", "a" * 300, "b" * 70_000, "%s%n", "{0}{x}",
    "[red]x[/red]", "[/]", "$HOME", "`id`", "null", "NaN", "-inf", "1e999", "0x10", "012", "no", "on", "2020-01-01",
    "1_000", "1:30",
    "../outside/secret.jpg", "../../outside/secret.jpg", "../../../outside/secret.txt", "/etc/passwd", "/dev/zero",
    "file:///etc/passwd", "con.jpg", "a/../b.jpg", "a\\b.jpg", "x.jpg\x00.png", "http://127.0.0.1:1/x.jpg",
)  # fmt: skip
"""Names, numbers as text, escape codes, formulas, paths that lead out."""


def odd_text(rng: Random) -> str:
    """Return a text from the list, or two of them joined."""
    return rng.choice(TEXTS) if rng.random() < 0.9 else rng.choice(TEXTS[:40]) + rng.choice(TEXTS[:40])


def deep(depth: int) -> Any:
    """Return lists and dicts inside each other."""
    value: Any = 0
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def odd_value(rng: Random) -> Any:
    """Return a value of any type that JSON has."""
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 5:
        return odd_text(rng)
    if kind == 5:
        return rng.choice((None, [], {}, [[]], {"a": {}}, [None], [[0, 0, 1, 1]], {"0": 1}))
    if kind == 6:
        return [rng.choice(NUMBERS) for _ in range(rng.choice((1, 2, 3, 4, 5, 1000)))]
    return deep(rng.choice((3, 30, 200)))


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Return every container with each of its keys."""
    found, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            found.append((node, key))
            waiting.append(node[key])
    return found


def rewrite_tree(rng: Random, tree: Any, times: int = 1) -> Any:
    """Return a tree of dicts and lists with some nodes changed, removed, doubled or moved; it changes in place."""
    for _ in range(times):
        places = _places(tree)
        if not places:
            return odd_value(rng)
        # Favours nodes near the top: there are far more leaves.
        node, key = rng.choice(places if rng.random() < 0.6 else places[: 1 + len(places) // 8])
        action = rng.randrange(10)
        if action < 5:
            node[key] = odd_value(rng)
        elif action == 5:
            del node[key]
        elif action == 6 and isinstance(node, dict):
            node[odd_text(rng)] = node.pop(key)
        elif action == 6 or action == 7:
            other, place = rng.choice(places)
            if place in other if isinstance(other, dict) else place < len(other):
                node[key] = _plain_copy(other[place])
        elif action == 8 and isinstance(node, list):
            node.extend([_plain_copy(node[key])] * rng.choice((1, 2, 500)))
        else:
            value = node[key]
            node[key] = rng.choice((str(value)[:2000], [value], {"a": value}, _number(value)))
    return tree


def _plain_copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain_copy(one) for key, one in value.items()}
    return [_plain_copy(one) for one in value] if isinstance(value, list) else value


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return -1


def to_json(rng: Random, values: Any) -> str:
    """Return JSON, sometimes with the mistakes of a careless writer."""
    text = json.dumps(values)
    if rng.random() < 0.06:
        half, doubled = text[: len(text) // 2], text.replace(":", ': 1e999, "x":', 1)
        return rng.choice((half, "\ufeff" + text, "[" * 100_000, text + text, doubled))
    return text
