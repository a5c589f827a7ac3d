"""What workers print, passed on to this process's own stdout and stderr."""

import codecs
import os
import re
import sys

_LINE_END = re.compile(rb"(\r\n|\n|\r(?=[^\n]))")  # a last "\r" may be half of "\r\n"
_CHUNK = 1 << 16


class Relay:
    """Passes on one stream of one worker: line by line behind its prefix, or unchanged and at once without one.

    The text goes to what `sys.stdout` or `sys.stderr` is at that moment, so that a redirected one gets it too.
    """

    def __init__(self, fd: int, name: str, prefix: str) -> None:
        """Read from `fd`, which must not block (-1: there is none, `feed` brings it), and write to `sys.<name>`."""
        self.fd = fd
        self._name = name
        self._prefix = prefix
        self._rest = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def pump(self) -> int | None:
        """Pass on some of what can be read; return how many bytes: 0 at the end, None if there are none just now."""
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return None
        self.feed(data)
        return len(data)

    def feed(self, data: bytes) -> None:
        """Pass on bytes that came some other way."""
        if self._prefix:
            self._pass_lines(self._rest + data)
        else:
            write(self._name, self._decoder.decode(data))

    def finish(self) -> None:
        """Pass on all that can be read now, a last line without an end included."""
        while self.fd >= 0 and self.pump():
            pass
        if self._rest:
            write(self._name, f"{self._prefix}{self._rest.decode('utf-8', 'replace').rstrip()}\n")
            self._rest = b""
        write(self._name, self._decoder.decode(b"", final=True))

    def _pass_lines(self, data: bytes) -> None:
        *parts, self._rest = _LINE_END.split(data)
        lines = [line + end for line, end in zip(parts[::2], parts[1::2], strict=True)]
        if len(self._rest) > _CHUNK:  # no line at all: memory must not grow with it
            lines.append(self._rest + b"\n")
            self._rest = b""
        # A progress bar begins with "\r": what is before it is empty.
        text = "".join(f"{self._prefix}{line.decode('utf-8', 'replace')}" for line in lines if line != b"\r")
        write(self._name, text)


def write(name: str, text: str) -> None:
    """Write text to `sys.stdout` or `sys.stderr`, whatever the program has put there."""
    stream = getattr(sys, name)
    if stream is None or not text:
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = getattr(stream, "encoding", None) or "ascii"
        stream.write(text.encode(encoding, "replace").decode(encoding))
    flush = getattr(stream, "flush", None)  # a writer of the user's own may have none
    if flush is not None:
        flush()
