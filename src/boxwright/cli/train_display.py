"""The display of a training: two lines on a terminal, nothing anywhere else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from boxwright.core.log import get_logger

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from boxwright.tasks.train.progress import StepReport

_BAR = 40
_LOSSES = {"total": "loss", "iou": "iou", "objectness": "obj", "classes": "cls", "l1": "l1"}


@contextmanager
def training_display(*, hidden: bool = False) -> "Iterator[Callable[[StepReport], None] | None]":
    """Yield a function that shows a report on stderr; None if that is not a terminal, so that lines are logged instead.

    Log lines and what workers print appear above the display.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        yield None
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live, _logging_to(console):
        yield lambda report: live.update(draw(report))


@contextmanager
def _logging_to(console: "Console") -> Iterator[None]:
    """Pass log lines through the console that draws; otherwise they would break the display."""
    from rich.logging import RichHandler

    before = [(handler, handler.console) for handler in get_logger().handlers if isinstance(handler, RichHandler)]
    for handler, _ in before:
        handler.console = console
    try:
        yield
    finally:
        for handler, own in before:
            handler.console = own


def draw(report: "StepReport") -> "RenderableType":
    """Return a report as two lines: progress and speed, then the losses."""
    from rich.text import Text

    from boxwright.tasks.train.progress import clock

    filled = round(_BAR * report.step / max(report.total, 1))
    first = Text.assemble(
        ("━" * filled, "green"),
        ("━" * (_BAR - filled), "dim"),
        f" {report.step}/{report.total}  epoch {report.epoch:.1f}  {report.images_per_s:.1f} images/s  "
        f"{clock(report.left_s)} left",
    )
    losses = "  ".join(f"{short} {report.losses[name]:.3f}" for name, short in _LOSSES.items() if name in report.losses)
    each = " per process" if report.processes > 1 else ""
    second = f"{losses}  lr {report.lr:.2e}  memory {report.memory_mb:,.0f} MB{each}".strip()
    return Text("\n").join([first, Text(second)])
