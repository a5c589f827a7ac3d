"""A progress bar on stderr; nothing where stderr is no terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

from boxwright.optimize.study import Progress


@contextmanager
def progress_bar(*, hidden: bool = False) -> Iterator[Progress]:
    """Give a function that takes what is being done, how much is done and how much there is."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
