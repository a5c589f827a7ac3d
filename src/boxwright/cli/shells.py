"""Completion scripts for shells, written from the parsers. They are static: pressing tab starts no Python."""

import argparse
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: its spellings, its help, and its values; None if it takes none, empty if any are possible."""

    flags: tuple[str, ...]
    help: str
    values: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """One parser: the words that lead to it, the verbs below it with their help, its options and positional choices."""

    words: tuple[str, ...]
    verbs: dict[str, str]
    options: tuple[Option, ...]
    choices: tuple[str, ...]


def read_commands(parser: argparse.ArgumentParser, *words: str) -> Iterator[CommandLine]:
    """Yield a parser and all parsers below it."""
    verbs: dict[str, str] = {}
    below: dict[str, argparse.ArgumentParser] = {}
    options: list[Option] = []
    choices: tuple[str, ...] = ()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = action.choices
            verbs = {pseudo.dest: pseudo.help or "" for pseudo in action._choices_actions}
        elif action.help == argparse.SUPPRESS:
            continue
        elif action.option_strings:
            values = None if action.nargs == 0 else tuple(map(str, action.choices or ()))
            options.append(Option(flags=tuple(action.option_strings), help=_plain(action.help), values=values))
        elif action.choices:
            choices += tuple(map(str, action.choices))
    yield CommandLine(words=words, verbs=verbs, options=tuple(options), choices=choices)
    for verb, sub in below.items():
        yield from read_commands(sub, *words, verb)


def _plain(text: str | None) -> str:
    return " ".join((text or "").replace("%%", "%").split())


def write_bash(commands: Iterator[CommandLine]) -> str:
    """Return the script for bash."""
    known, cases = [], []
    for command in commands:
        place = " ".join(command.words)
        known += [f'"{place} {verb}"' for verb in command.verbs]
        given = [
            f"            {'|'.join(option.flags)}) words={shlex.quote(' '.join(option.values))} ;;"
            for option in command.options
            if option.values is not None
        ]
        flags = " ".join(flag for option in command.options for flag in option.flags)
        cases += [
            f'    "{place}")',
            '        case "$previous" in',
            *given,
            "            *)",
            f"                words={shlex.quote(' '.join((*command.verbs, *command.choices)))}",
            f'                [[ $current == -* ]] && words="{flags}" ;;',
            "        esac ;;",
        ]
    return "\n".join(
        [
            "_boxwright() {",
            '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"',
            '    local place="" words="" word',
            '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
            '        case "$place $word" in',
            f'            {"|".join(known)}) place="${{place:+$place }}$word" ;;',
            "        esac",
            "    done",
            '    case "$place" in',
            *cases,
            "    esac",
            '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "}",
            "complete -o default -F _boxwright boxwright",  # -o default: files, where there are no words
            "",
        ]
    )


def write_zsh(commands: Iterator[CommandLine]) -> str:
    """Return the script for zsh."""
    cases = []
    for command in commands:
        specs = [_zsh_option(option) for option in command.options]
        rest = f"'*:value:({' '.join(command.choices)})'" if command.choices else "'*:file:_files'"
        if command.verbs:
            verbs = " ".join(shlex.quote(f"{_zsh(verb)}:{help}") for verb, help in command.verbs.items())
            body = [f"            words_here=({verbs})", "            _describe verb words_here ;;"]
        else:
            body = ["            _arguments -s \\", *(f"                {spec} \\" for spec in specs)]
            body += [f"                {rest} ;;"]
        cases += [f'        "{" ".join(command.words)}")', *body]
    known = "|".join(f'"{" ".join(words)}"' for words in _places(cases))
    return "\n".join(
        [
            "#compdef boxwright",
            "_boxwright() {",
            '    local place="" word',
            "    local -a words_here",
            "    integer count=1",
            '    for word in "${(@)words[2,CURRENT-1]}"; do',
            '        case "${place:+$place }$word" in',
            f'            {known}) place="${{place:+$place }}$word"; (( count++ )) ;;',
            "            *) break ;;",
            "        esac",
            "    done",
            "    # What is left looks to _arguments like a command of its own.",
            "    (( CURRENT -= count - 1 ))",
            "    shift $(( count - 1 )) words",
            '    case "$place" in',
            *cases,
            "    esac",
            "}",
            "compdef _boxwright boxwright",
            "",
        ]
    )


def _places(cases: list[str]) -> Iterator[list[str]]:
    for line in cases:
        text = line.strip()
        if text.startswith('"') and text.endswith('")') and text != '"")':
            yield text[1:-2].split()


def _zsh(text: str) -> str:
    """Return a text for _arguments, where these characters have a meaning."""
    for character in "\\[]:":
        text = text.replace(character, f"\\{character}")
    return text


def _zsh_option(option: Option) -> str:
    value = ""
    if option.values is not None:
        value = f":value:({' '.join(option.values)})" if option.values else ":value:_files"
    all_ = " ".join(option.flags)
    return " ".join(shlex.quote(f"({all_}){flag}[{_zsh(option.help)}]{value}") for flag in option.flags)


def write_fish(commands: Iterator[CommandLine]) -> str:
    """Return the script for fish."""
    lines = []
    for command in commands:
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.words)
        if command.verbs:
            none = f"not __fish_seen_subcommand_from {' '.join(command.verbs)}"
            here = f"{seen}; and {none}" if seen else "__fish_use_subcommand"
            lines += [_fish(here, f"-f -a {verb}", help) for verb, help in command.verbs.items()]
        if command.choices:
            lines.append(_fish(seen, f"-f -a {shlex.quote(' '.join(command.choices))}", ""))
        for option in command.options:
            flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
            value = "" if option.values is None else f" -x -a {shlex.quote(' '.join(option.values))}"
            value = " -r" if option.values == () else value
            lines.append(_fish(seen or "__fish_use_subcommand", flags + value, option.help))
    return "\n".join([*lines, ""])


def _fish(when: str, what: str, help: str) -> str:
    quoted = help.replace("\\", "\\\\").replace("'", "\\'")
    return f"complete -c boxwright -n '{when}' {what}" + (f" -d '{quoted}'" if help else "")


WRITERS: dict[str, Callable[[Iterator[CommandLine]], str]] = {
    "bash": write_bash,
    "zsh": write_zsh,
    "fish": write_fish,
}
"""What writes the script of a shell."""
