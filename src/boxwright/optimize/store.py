"""What a search has done so far, in files: a search that was interrupted goes on where it was."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.core import catalogue
from boxwright.core.errors import UsageError
from boxwright.optimize.accuracy import Score
from boxwright.optimize.trial import Tried
from boxwright.runtimes.artifact import is_artifact
from boxwright.runtimes.base import Choice


class Store:
    """The tries of one folder, each under a key: what was tried with another key is not there.

    Only tries that came to a result are kept. What failed or is unfinished is tried again: the reason may be gone.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = folder
        self._fingerprint = fingerprint
        (folder / "tries").mkdir(parents=True, exist_ok=True)

    @property
    def reference(self) -> Path:
        """The file with the original's outputs."""
        return self.folder / "tries" / "reference.npz"

    def artifact(self, method: str) -> Path:
        """Return the folder of a method's artifact."""
        return self.folder / "artifacts" / method

    def log(self, method: str) -> Path:
        """Return the file with what a method's process printed."""
        return self.folder / "logs" / f"{method}.log"

    def read(self, method: str, choice: Choice | None, wish: str = "") -> Tried | None:
        """Return the try that was made with the same model, data, versions and wish; None if there is none."""
        try:
            values = json.loads(self._file(method).read_text(encoding="utf-8"))
            if values.pop("key") != self._key(choice, wish):
                return None
            with np.load(self._file(method).with_suffix(".npz")) as arrays:
                kept = {name: arrays[name] for name in arrays.files}
            value = values.pop("value")
            tried = Tried(**values | {"kept": tuple(values["kept"])})
        except (OSError, ValueError, KeyError, TypeError):
            return None
        there = self.reference.is_file() if choice is None else is_artifact(self.artifact(method))
        if not there and tried.status == "successful":
            return None
        return tried if value is None else replace(tried, score=Score(value=value, arrays=kept))

    def write(self, method: str, choice: Choice | None, tried: Tried, wish: str = "") -> None:
        """Keep a try that came to a result."""
        if tried.unfinished or tried.status not in ("successful", "wrong result"):
            self._file(method).unlink(missing_ok=True)
            return
        arrays: dict[str, Any] = {} if tried.score is None else dict(tried.score.arrays)
        np.savez_compressed(self._file(method).with_suffix(".npz"), **arrays)
        values = {
            "key": self._key(choice, wish),
            "status": tried.status,
            "note": tried.note,
            "value": None if tried.score is None else tried.score.value,
            "distance": tried.distance,
            "size_bytes": tried.size_bytes,
            "recipe": dict(tried.recipe),
            "kept": list(tried.kept),
            "score_s": tried.score_s,
        }
        self._file(method).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")

    def _file(self, method: str) -> Path:
        return self.folder / "tries" / f"{method}.json"

    def _key(self, choice: Choice | None, wish: str) -> str:
        told = [self._fingerprint, None if choice is None else choice.to_dict(), used_versions(choice), wish]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Hold a folder against other searches, which would overwrite each other's artifacts; it is made if need be.

    The kernel lets go of it when this process ends, however it ends.

    Raises:
        UsageError: another search works in it, or nothing can be written there.
    """
    try:
        (folder / "tries").mkdir(parents=True, exist_ok=True)
        file = (folder / "tries" / "lock").open("a+", encoding="ascii")
    except OSError as error:
        raise UsageError(
            f"Results can't be written to {str(folder)!r}: {error.strerror}. Choose another folder."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise UsageError(
                f"{str(folder)!r} is in use by another search (process {file.read().strip() or 'unknown'}). "
                "Wait for its end, or choose another folder."
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            # By hand: a loader's processes that were forked meanwhile hold the same lock as long as they live.
            fcntl.flock(file, fcntl.LOCK_UN)


def used_versions(choice: Choice | None) -> dict[str, str]:
    """Return the versions of the packages that a conversion uses."""
    packages = ["boxwright", "numpy", "torch"]
    if choice is not None:
        try:
            packages += catalogue.find("runtime", choice.runtime).packages
        except UsageError:
            return {}
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
