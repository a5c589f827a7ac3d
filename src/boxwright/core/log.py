"""Log lines and progress bars on stderr; stdout is for results. No line is shown until `configure` is called."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TextIO, get_args

from boxwright.core.errors import check_choice
from boxwright.core.text import printable

Level = Literal["quiet", "normal", "verbose", "debug"]
"""`quiet`: warnings and errors. `normal`: progress too. `verbose`: details too. `debug`: with time and place."""

_THRESHOLDS = {"quiet": logging.WARNING, "normal": logging.INFO, "verbose": logging.DEBUG, "debug": logging.DEBUG}
_HANDLER = "boxwright.console"


def get_logger(name: str = "") -> logging.Logger:
    """Return the logger of a module, always below "boxwright".

    Example:
        >>> get_logger("train").name, get_logger("boxwright.data.check").name
        ('boxwright.train', 'boxwright.data.check')
    """
    if name in ("", "boxwright"):
        return logging.getLogger("boxwright")
    return logging.getLogger(name if name.startswith("boxwright.") else f"boxwright.{name}")


def configure(level: Level = "normal", *, stream: TextIO | None = None) -> None:
    """Show Boxwright's log lines from now on: coloured on a terminal, plain anywhere else.

    A second call replaces the first. The root logger and other handlers are left alone, so they still get the lines.

    Args:
        level: how much to show.
        stream: where to; stderr by default.

    Raises:
        UsageError: there is no such level.
    """
    check_choice("log level", level, get_args(Level))
    handler = _make_handler(sys.stderr if stream is None else stream, debug=level == "debug")
    handler.set_name(_HANDLER)
    logger = get_logger()
    for old in [h for h in logger.handlers if h.get_name() == _HANDLER]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(_THRESHOLDS[level])


@contextmanager
def progress_bar(*, hidden: bool = False, in_bytes: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that takes what is being done, how much is done and how much there is (0: not known).

    It draws a progress bar on stderr; nothing if stderr is not a terminal.

    Args:
        hidden: draw nothing.
        in_bytes: show the numbers as sizes of data.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    counted = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description:32}"), BarColumn(), counted, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total or None)


class _Formatter(logging.Formatter):
    """Shows control characters of names and messages as escapes."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _make_handler(stream: TextIO | None, *, debug: bool) -> logging.Handler:
    if stream is None:  # stderr was closed before the program started
        return logging.NullHandler()
    if not stream.isatty():
        plain = logging.StreamHandler(stream)
        place = "%(asctime)s %(name)s:%(lineno)d " if debug else ""
        plain.setFormatter(_Formatter(f"{place}%(levelname)s %(message)s"))
        return plain
    # Imported here because `boxwright --help` must not wait for it.
    from rich.console import Console
    from rich.logging import RichHandler

    rich = RichHandler(console=Console(file=stream), show_time=debug, show_path=debug, markup=False)
    rich.setFormatter(_Formatter("%(message)s"))
    return rich
