"""Prepare the documentation site in a folder: python tools/make_docs.py [build/docs].

It holds the pages of docs/, pages generated from the code (command line, Python API, settings), and zensical.toml with
the navigation. `make docs` builds the site from it.
"""

import argparse
import dataclasses
import importlib
import inspect
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = {
    "tutorials": "Tutorials",
    "how-to": "How-to",
    "reference": "Reference",
    "explanation": "Explanation",
}
LAST = ("figures.md", "log.md")
TUTORIALS = ("train", "optimize", "serve", "cluster")
"""The tutorials in the order in which they are read."""


def prepare(folder: Path) -> None:
    """Write everything that the site generator needs into a folder; what it held before is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = folder / "docs"
    shutil.copytree(ROOT / "docs", pages)
    for name, text in generated_pages().items():
        (pages / "reference" / name).write_text(text, encoding="utf-8")
    (folder / "zensical.toml").write_text(make_config(pages), encoding="utf-8")


def generated_pages() -> dict[str, str]:
    """Return the text of each page of the reference that comes from the code, by its file name."""
    return {"cli.md": make_cli_page(), "python.md": make_python_page(), "settings.md": make_settings_page()}


def make_config(pages: Path) -> str:
    """Return zensical.toml: settings without a network, and all pages in their sections."""
    nav: list[Any] = [{"Boxwright": "index.md"}]
    for folder, title in SECTIONS.items():
        names = [path.name for path in (pages / folder).glob("*.md")]
        names.sort(key=lambda name: (name[:-3] not in TUTORIALS, _order(name), name))
        nav.append({title: [{read_title(pages / folder / name): f"{folder}/{name}"} for name in names]})
    nav += [{read_title(pages / name): name} for name in LAST]
    return (
        '[project]\nsite_name = "Boxwright"\n'
        'site_description = "Train, optimise and serve the YOLOX object detector fast on CPUs, CUDA and Gaudi."\n'
        f"use_directory_urls = false\nnav = {_toml(nav)}\n"
        '[project.theme]\nlanguage = "en"\nfont = false\nfeatures = ["content.code.copy", "navigation.sections", '
        '"navigation.top", "search.highlight"]\n'
        '[[project.theme.palette]]\nmedia = "(prefers-color-scheme: light)"\nscheme = "default"\n'
        '[[project.theme.palette]]\nmedia = "(prefers-color-scheme: dark)"\nscheme = "slate"\n'
        "[project.markdown_extensions]\nadmonition = {}\ntables = {}\ntoc.permalink = true\n"
        "pymdownx.highlight = {}\npymdownx.superfences = {}\n"
    )


def read_title(path: Path) -> str:
    """Return a page's first heading."""
    return path.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")


def make_cli_page() -> str:
    """Return the reference of the command line, from its parsers."""
    from boxwright.cli import build_parser

    lines = [
        "# Command line",
        "",
        "This page is generated from the parsers. `boxwright VERB --help` prints the same. Every command also takes",
        "the options in [Output](#output). The exit codes are in [Exit codes](exit-codes.md).",
        "",
    ]
    common: list[str] = []
    for name, parser in _leaves(build_parser()):
        lines += [f"## {name}", "", _sentence(parser.description), "", "```", _usage(parser), "```", ""]
        for group in parser._action_groups:  # argparse has no public name for them
            rows = [_action_row(action) for action in group._group_actions if action.dest != "help"]
            if not rows or (group.title or "") == "output":
                common = rows or common
                continue
            lines += [f"**{(group.title or '').capitalize()}**", "", "| | |", "|---|---|", *rows, ""]
    lines += ["## Output", "", "| | |", "|---|---|", *common, ""]
    return "\n".join(lines)


def make_python_page() -> str:
    """Return the reference of the public names, from their docstrings."""
    import boxwright

    lines = [
        "# Python API",
        "",
        "This page is generated from the docstrings of the names in `boxwright`. Each is imported at its first use.",
        "",
    ]
    for name in boxwright.__all__:
        thing = getattr(boxwright, name)
        if name.startswith("__"):
            continue
        lines += [f"## {name}", "", *_describe(name, thing)]
        if inspect.isclass(thing) and not issubclass(thing, BaseException):
            for method, value in inspect.getmembers(thing, callable):
                if not method.startswith("_") and method in vars(thing) and inspect.getdoc(value):
                    lines += [f"### {name}.{method}", "", *_describe(method, value)]
    return "\n".join(lines)


def make_settings_page() -> str:
    """Return the reference of the settings that YAML files and `key value` words hold."""
    lines = [
        "# Settings",
        "",
        "This page is generated from the code. A YAML file given with `--config` holds keys of this list; on the",
        "command line they follow as `key value` or `key=value` and override the file. An unknown key is an error.",
        "",
    ]
    for title, home in (("Training", "tasks.train.config:TrainConfig"), ("Server", "serve.config:ServeConfig")):
        module, _, cls = home.partition(":")
        kind = getattr(importlib.import_module(f"boxwright.{module}"), cls)
        meanings = _attributes(kind)
        lines += [f"## {title}", "", "| key | type | default | |", "|---|---|---|---|"]
        for field in dataclasses.fields(kind):
            default = "" if field.default is dataclasses.MISSING else f"`{field.default}`"
            if field.init:
                lines.append(
                    f"| `{field.name}` | {_cell(_type(field.type))} | {default} | {meanings.get(field.name, '')} |"
                )
        lines.append("")
    return "\n".join(lines)


def _leaves(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each command and its parser, subcommands included."""
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not below:
        yield parser.prog, parser
    for action in below:
        for sub in action.choices.values():
            yield from _leaves(sub)


def _usage(parser: argparse.ArgumentParser) -> str:
    formatter = argparse.HelpFormatter(parser.prog, width=100)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, prefix="")
    return formatter.format_help().strip()


def _action_row(action: argparse.Action) -> str:
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar or action.dest}`"
    value = ""
    if action.option_strings and action.nargs != 0:
        choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
        value = f" {action.metavar or choices}"
    return f"| {names}{_cell(value)} | {_cell((action.help or '') % _values(action))} |"


def _values(action: argparse.Action) -> dict[str, Any]:
    return {"default": action.default, "prog": "boxwright", "dest": action.dest}


def _describe(name: str, thing: Any) -> list[str]:
    """Return a signature and a docstring as Markdown."""
    lines = []
    if callable(thing):
        signature = _signature(thing)
        lines += ["```", *textwrap.wrap(f"{name}{signature}", 100, subsequent_indent="    "), "```", ""]
    return [*lines, *_docstring(inspect.getdoc(thing) or ""), ""]


def _signature(thing: Any) -> str:
    """Return the parameters of a class or function, with short names of types."""
    try:
        signature = inspect.signature(thing)
    except ValueError:
        return "(…)"
    given = signature.parameters.values()
    kept = [p.replace(annotation=_Text(p.annotation)) if p.annotation is not p.empty else p for p in given]
    result = signature.return_annotation
    short = signature.replace(
        parameters=[p for p in kept if p.name != "self"],
        return_annotation=result if result is signature.empty else _Text(result),
    )
    return re.sub(r"<.*? at 0x[0-9a-f]+>", "…", str(short))


class _Text:
    """A type that shows as its name."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def __repr__(self) -> str:
        text = inspect.formatannotation(self._kind) if not isinstance(self._kind, str) else self._kind
        if "_typing" in text:
            return "ArrayLike"
        return re.sub(r"\b(?:[a-z_0-9]+\.)+(?=[A-Za-z])", "", text)


def _docstring(text: str) -> list[str]:
    """Return a Google docstring as Markdown: sections become lists, examples become blocks."""
    lines: list[str] = []
    section = ""
    for line in text.splitlines():
        heading = re.fullmatch(r"(Args|Attributes|Raises|Returns|Yields|Example|Examples):", line)
        if heading:
            if section.startswith("Example"):
                lines += ["```", ""]
            section = heading[1]
            lines += [f"**{section}**", ""] + ["```"] * section.startswith("Example")
        elif section.startswith("Example"):
            lines.append(line.removeprefix("    "))
        elif section and (item := re.match(r"    (\w+): ?(.*)", line)):
            lines.append(f"- `{item[1]}`: {item[2]}")
        else:
            lines.append(line.removeprefix("    ") if not section else f"  {line.strip()}".rstrip())
    if section.startswith("Example"):
        while lines and not lines[-1].strip():
            lines.pop()
        lines.append("```")
    return lines


def _attributes(kind: type) -> dict[str, str]:
    """Return what the docstring of a dataclass says of each field."""
    text = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if item := re.match(r"    (\w+): ?(.*)", line):
            name = item[1]
            found[name] = item[2]
        elif name:
            found[name] += f" {line.strip()}"
    return {key: _cell(value) for key, value in found.items()}


def _type(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind) if not isinstance(kind, type) else kind.__name__


def _cell(text: str) -> str:
    return (
        text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ").replace("typing.", "").replace("pathlib.", "")
    )


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


def _order(name: str) -> int:
    return TUTORIALS.index(name[:-3]) if name[:-3] in TUTORIALS else 0


def _toml(value: Any) -> str:
    """Return lists, tables and text as TOML on one line."""
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    prepare(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs")
