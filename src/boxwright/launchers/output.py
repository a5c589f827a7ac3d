"""Workers' output, forwarded to this process's own stdout and stderr."""

import codecs
import re
import sys
from collections.abc import Callable

_LINE_END = re.compile(rb"(\r\n|\n|\r(?=[^\n]))")  # a last "\r" may be half of "\r\n"
_LONGEST_LINE = 1 << 16


class Relay:
    """Forwards one stream of one worker: line by line behind a prefix, or unchanged and at once without one.

    The text goes to the current `sys.stdout` or `sys.stderr`, so that a redirected one receives it too.
    """

    def __init__(self, name: str, prefix: str) -> None:
        """Write to `sys.<name>`."""
        self._name = name
        self._prefix = prefix
        self._rest = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes) -> None:
        """Forward some output; no bytes mean its end, and flush a last line that has none."""
        if not data and self._rest:
            write(self._name, f"{self._prefix}{self._rest.decode('utf-8', 'replace').rstrip()}\n")
            self._rest = b""
        elif self._prefix:
            self._forward_lines(self._rest + data)
        else:
            write(self._name, self._decoder.decode(data, final=not data))

    def _forward_lines(self, data: bytes) -> None:
        *parts, self._rest = _LINE_END.split(data)
        lines = [line + end for line, end in zip(parts[::2], parts[1::2], strict=True)]
        if len(self._rest) > _LONGEST_LINE:  # output without line ends must not fill the memory
            lines.append(self._rest + b"\n")
            self._rest = b""
        # A progress bar begins with "\r": what is before it is empty.
        text = "".join(f"{self._prefix}{line.decode('utf-8', 'replace')}" for line in lines if line != b"\r")
        write(self._name, text)


def make_relays(rank: int, world_size: int) -> Callable[[str, bytes], None]:
    """Return what forwards a worker's output of "stdout" or "stderr"; the lines of several workers get a prefix."""
    prefix = f"[rank {rank}] " if world_size > 1 else ""
    relays = {name: Relay(name, prefix) for name in ("stdout", "stderr")}
    return lambda name, data: relays[name].feed(data)


def write(name: str, text: str) -> None:
    """Write text to `sys.stdout` or `sys.stderr`, whatever object the program has put there."""
    stream = getattr(sys, name)
    if stream is None or not text:
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = getattr(stream, "encoding", None) or "ascii"
        stream.write(text.encode(encoding, "replace").decode(encoding))
    flush = getattr(stream, "flush", None)  # a user's own writer may have none
    if flush is not None:
        flush()
