"""The frame of every page: one HTML file without network access, light and dark, and printable."""

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1c2530; --soft: #5a6672; --line: #d8dee4; --paper: #fff; --raised: #f5f7f9;
  --mark: #eaf4ec; --good: #1b7f4b; --bad: #b3343a; --c0: #0b6e99; --c1: #b5651d; --c2: #1b7f4b; --c3: #7b3fa0;
  --c4: #b3343a; --c5: #5b6b7b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9ee; --soft: #a3afba; --line: #38424c; --paper: #161b21; --raised: #1e252c; --mark: #1d3324;
    --good: #58c088; --bad: #ef7d82; --c0: #4fb3dd; --c1: #e09a5a; --c2: #58c088; --c3: #bd8ae0; --c4: #ef7d82;
    --c5: #98a8b8; }
}
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1100px; padding: 0 1rem;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.5rem; margin-bottom: .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
h3 { font-size: .95rem; margin: 1rem 0 .2rem; overflow-wrap: anywhere; }
p, li, figcaption { color: var(--soft); overflow-wrap: anywhere; }
a { color: var(--c0); }
b { color: var(--ink); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top;
  font-variant-numeric: tabular-nums; }
th.text, td.text { text-align: left; overflow-wrap: break-word; max-width: 24rem; }
td.note { color: var(--soft); max-width: 26rem; }
tr.best td { background: var(--mark); font-weight: 600; }
tr.bad td { color: var(--soft); }
pre { background: var(--raised); padding: .8rem; overflow-x: auto; font-size: .85rem; }
svg { max-width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg.dots text { paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
svg .soft { fill: var(--soft); } svg .grid { stroke: var(--line); } svg .frame { stroke: var(--soft); fill: none; }
svg .halo { paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
svg .budget { stroke: var(--bad); stroke-dasharray: 6 4; }
svg .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.long { max-height: 27rem; overflow: auto; }
.long th { position: sticky; top: 0; background: var(--paper); }
.columns { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); gap: .4rem 1.6rem; }
.halves { grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 150px), 1fr)); gap: .6rem;
  padding: 0; }
.figures li { list-style: none; background: var(--raised); padding: .5rem .8rem; border-radius: 6px; }
.figures b { display: block; font-size: 1.25rem; }
label { margin-right: 1rem; } select, input, button { font: inherit; color: inherit; background: var(--raised);
  border: 1px solid var(--line); border-radius: 4px; padding: .2rem .4rem; max-width: 100%; }
:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px; }
@media print { body { margin: 0; max-width: none; } .long { max-height: none; overflow: visible; }
  .controls { display: none; } section { break-inside: avoid-page; }
  tr, figure { break-inside: avoid; } }
"""


class Html(str):
    """Text that is markup already; all other text is escaped where it enters a page.

    Example:
        >>> join(["<b>", Html("<b>bold</b>")])
        '&lt;b&gt;<b>bold</b>'
    """


def join(parts: Iterable[str]) -> Html:
    """Return the parts as one piece of markup, escaping those that are not markup."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


def element(tag: str, *parts: str, **attributes: str | float) -> Html:
    """Return an element with the parts inside; `class_` is the attribute `class`, and `data_kind` is `data-kind`.

    Example:
        >>> element("td", "a & b", class_="text")
        '<td class="text">a &amp; b</td>'
    """
    given = "".join(f' {name.rstrip("_").replace("_", "-")}="{escape(str(v))}"' for name, v in attributes.items())
    return Html(f"<{tag}{given}>{join(parts)}</{tag}>")


def section(title: str, *parts: str) -> Html:
    """Return a part of the page with a heading; strings are paragraphs, markup is taken as it is."""
    shown = [part if isinstance(part, Html) else element("p", part) for part in parts if part]
    return element("section", element("h2", title), *shown)


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    texts: int = 1,
    kinds: Sequence[str] = (),
    note: bool = False,
) -> Html:
    """Return a table.

    Args:
        heads: of the columns.
        rows: the cells.
        texts: how many columns on the left hold text; the others hold numbers and are aligned to the right.
        kinds: a class of each row, such as "best" or "bad".
        note: whether the last column holds remarks.
    """

    def cells(tag: str, row: Sequence[str]) -> list[Html]:
        last = len(row) - 1 if note else len(row)
        kind = ["text" if i < texts else "text note" if i == last else "" for i in range(len(row))]
        return [element(tag, cell, **({"class_": k} if k else {})) for cell, k in zip(row, kind, strict=True)]

    body = [
        element("tr", *cells("td", row), **({"class_": kinds[i]} if i < len(kinds) and kinds[i] else {}))
        for i, row in enumerate(rows)
    ]
    head = element("thead", element("tr", *cells("th", heads)))
    return element("div", element("table", head, element("tbody", *body)), class_="wide")


def figures(values: Iterable[tuple[str, str]]) -> Html:
    """Return the few numbers that matter most, each with its name."""
    return element("ul", *(element("li", element("b", value), name) for name, value in values), class_="figures")


def make_page(title: str, *parts: str, style: str = "", script: str = "") -> str:
    """Return a whole page.

    Args:
        title: of the window and the page.
        parts: what `section` and the others return; other strings become paragraphs.
        style: more rules for this page.
        script: JavaScript for this page; it may not hold "</script".
    """
    shown = [part if isinstance(part, Html) else element("p", part) for part in parts if part]
    head = Html(
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style>"
    )
    end = Html(f"<script>{script}</script>" if script else "")
    body = element("body", element("h1", title), *shown, end)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>{body}</html>\n'
