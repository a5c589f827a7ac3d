"""How a command ends: its streams, the sentence for an error, and the exit code."""

import os
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from boxwright import __version__
from boxwright.core.errors import BoxwrightError, DataError
from boxwright.core.files import naming
from boxwright.core.text import printable

UNEXPECTED = 70
"""The exit code of an unexpected error (EX_SOFTWARE), which is a fault in Boxwright."""

INTERRUPTED = 130
"""The exit code after Ctrl-C, as a shell reports it."""

_STDOUT = Path("<stdout>")
_TRACE = "Traceback (most recent call last):"
# Libraries that do not raise MemoryError: torch, OpenCV, OpenVINO.
_NO_MEMORY = ("can't allocate memory", "Insufficient memory", "bad_alloc", "out of memory")


class PrintableOut:
    """Stdout that writes control characters as escapes; its errors name `<stdout>`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text."""
        with naming(_STDOUT):
            return self._stream.write(printable(text))

    def flush(self) -> None:
        """Write what is buffered."""
        with naming(_STDOUT):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def open_closed_streams() -> None:
    """Open standard streams that the caller has closed (`2>&-`, a daemon) on /dev/null.

    Otherwise the next file to be opened would get the stream's number, and a library that writes to stderr would write
    into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115  stays open


def settle_streams() -> None:
    """Redirect streams that can't be written (full disk, closed pipe) to /dev/null: Python would try again at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(text: str) -> None:
    """Print a line on stderr; do nothing if that fails."""
    with suppress(OSError, ValueError):
        print(printable(text), file=sys.stderr, flush=True)


def stop(code: int) -> int:
    """Say that a signal has ended the command, and return the exit code."""
    say("Stopped.")
    return code


def report(error: Exception, *, debug: bool) -> int:
    """Print an error as a sentence, or with its traceback, and return the exit code."""
    if isinstance(error.__cause__, KeyboardInterrupt):  # a native module that is being imported does so
        return stop(INTERRUPTED)
    if isinstance(error, BrokenPipeError) and error.filename == str(_STDOUT):  # its reader has ended, as `| head` does
        return 0
    sentence, code = _describe(error)
    if debug:
        say("".join(traceback.format_exception(error)).rstrip())
    elif code == UNEXPECTED:
        say(f"{sentence} This is a fault in Boxwright: please report it. {_keep_trace(error)}")
    elif _TRACE in sentence:  # of a worker
        say(f"{sentence.partition(_TRACE)[0].strip()} {_keep_trace(error)}")
    else:
        say(sentence)
    return code


def _describe(error: Exception) -> tuple[str, int]:
    """Return the sentence and the exit code of an error."""
    name, text = type(error).__name__, str(error).strip()
    if isinstance(error, BoxwrightError):
        return f"{name}: {text}", error.exit_code
    if isinstance(error, OSError):
        if error.strerror and error.filename is not None:
            text = f"{error.strerror}: {os.fsdecode(error.filename)!r}"
        return f"{name}: {text or 'the system gave no reason'}", 1
    if isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY):
        return (
            "MemoryError: There is not enough memory for this. Use a smaller --batch, --size or picture, or fewer "
            "--workers.",
            1,
        )
    if isinstance(error, UnicodeDecodeError):
        return f"{name}: A text file is not valid {error.encoding} ({error.reason}). Save it as UTF-8.", (
            DataError.exit_code
        )
    first = text.splitlines()[0].rstrip(".") if text else "no message"
    return f"Unexpected {name}: {first}.", UNEXPECTED


def _keep_trace(error: Exception) -> str:
    """Write the traceback to a new file, and return a sentence that names it."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="boxwright-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(f"boxwright {__version__}, Python {sys.version}\n{sys.argv!r}\n\n")
            file.writelines(traceback.format_exception(error))
    except OSError:
        return "Run it again with --debug to see its traceback."
    return f"Its traceback is in {file.name!r}; --debug prints it."
