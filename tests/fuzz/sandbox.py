"""The folders that one input may use, and files beside them that nothing may touch."""

import ctypes
import os
import shutil
import struct
from pathlib import Path

SECRET = b"CANARY-5f1d0c"
_OPEN, _WRITE = 0x20, 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200  # IN_OPEN; modify, attributes, moves, create, delete
_EVENT = struct.Struct("iIII")

State = dict[str, tuple[int, int, int]]


class Sandbox:
    """`in/` holds the spoilt files, `work/` is the current folder, `out/`, `home/` and `tmp/` may be written.

    Nothing may read or write `outside/`. The kernel (inotify) reports every access there, also by native libraries.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inputs, self.work, self.out = root / "in", root / "work", root / "out"
        self.home, self.tmp, self.outside = root / "home", root / "tmp", root / "outside"
        self.logs = root.with_name(f"{root.name}.logs")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._watch = -1

    def reset(self, *, keep_inputs: bool = False) -> None:
        """Make all folders, empty except for the canaries."""
        for folder in (self.inputs, self.work, self.out, self.home, self.tmp, self.outside, self.logs):
            if folder == self.inputs and keep_inputs:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        (self.outside / "secret.txt").write_bytes(SECRET * 100)
        (self.outside / "secret.jpg").write_bytes(b"\xff\xd8\xff\xfe\0\x20" + SECRET.ljust(30) + b"\xff\xd9")

    def environment(self) -> dict[str, str]:
        """Return the variables that send everything into the sandbox."""
        # The caller's torch may have set another folder.
        compiled = {"TORCHINDUCTOR_CACHE_DIR": str(self.tmp / "torchinductor_")}
        away = {name: str(self.home / name.lower()) for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
        return {"HOME": str(self.home), "TMPDIR": str(self.tmp), "OMP_NUM_THREADS": "1", **away, **compiled}

    def snapshot(self) -> State:
        """Return type, size and time of change of everything that must stay as it is."""
        found: State = {}
        for folder in (self.inputs, self.outside):
            for place, folders, names in os.walk(folder):
                for name in (*folders, *names):
                    path = os.path.join(place, name)
                    state = os.lstat(path)
                    found[os.path.relpath(path, self.root)] = (state.st_mode, state.st_size, state.st_mtime_ns)
        return found

    def watch(self) -> None:
        """Report from now on what happens in `outside/`."""
        self.unwatch()
        self._watch = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._watch >= 0, "there is no inotify here"
        self._libc.inotify_add_watch(self._watch, os.fsencode(self.outside), _OPEN | _WRITE)

    def touched(self) -> list[str]:
        """Return what was opened or changed in `outside/` since `watch`."""
        try:
            data = os.read(self._watch, 65_536)
        except BlockingIOError:
            return []
        found, at = [], 0
        while at < len(data):
            _, mask, _, length = _EVENT.unpack_from(data, at)
            name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0").decode(errors="replace")
            found.append(f"{'read' if mask & _OPEN else 'changed'} outside/{name}")
            at += _EVENT.size + length
        return sorted(set(found))

    def unwatch(self) -> None:
        """Stop watching."""
        if self._watch >= 0:
            os.close(self._watch)
        self._watch = -1

    def written(self) -> list[Path]:
        """Return every regular file that a run may have written."""
        places = (self.work, self.out, self.home, self.tmp)
        return [path for place in places for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
