"""The access log: a JSON line for each request."""

import json
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger

_log = get_logger(__name__)


class AccessLog:
    """Writes lines to a file, or to stderr for "-"."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = self._open()

    def write(self, **values: Any) -> None:
        """Write one line; a full disk must not stop the server."""
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **values})
        try:
            self._file.write(line + "\n")
        except (OSError, ValueError):
            return

    def reopen(self) -> None:
        """Open the file again, after it was renamed; if that fails, the old one gets the lines."""
        if self._path == "-":
            return
        try:
            new = self._open()
        except UsageError as error:
            _log.error("%s", error)
            return
        self._file.close()
        self._file = new

    def close(self) -> None:
        """Close the file; later lines are lost."""
        if self._path != "-":
            self._file.close()

    def _open(self) -> TextIO:
        if self._path == "-":
            return sys.stderr
        try:
            return open(self._path, "a", buffering=1, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"The access log {self._path!r} can't be written: {error.strerror}.") from error
