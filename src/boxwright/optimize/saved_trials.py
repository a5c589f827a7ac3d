"""The trials of a search, saved in its folder: an interrupted search resumes where it stopped."""

import fcntl
import hashlib
import json
import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from boxwright.core import catalogue
from boxwright.core.errors import UsageError
from boxwright.core.files import naming, write_whole
from boxwright.core.packages import installed_version
from boxwright.optimize.accuracy import Score
from boxwright.optimize.trial import Trial
from boxwright.runtimes.artifact import is_artifact
from boxwright.runtimes.base import Choice
from boxwright.runtimes.trust import is_made_here


class SavedTrials:
    """The trials of one folder. Each has a key of the model, data, versions and settings it was made with.

    Only trials with a result are saved. A failed or unfinished one is repeated: its cause may be gone.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = folder
        self._fingerprint = fingerprint
        (folder / "tries").mkdir(parents=True, exist_ok=True)

    @property
    def reference(self) -> Path:
        """The file of the original's outputs."""
        return self.folder / "tries" / "reference.npz"

    def artifact(self, method: str) -> Path:
        """Return the folder of a method's artifact."""
        return self.folder / "artifacts" / method

    def log(self, method: str) -> Path:
        """Return the file of the output of a method's process."""
        return self.folder / "logs" / f"{method}.log"

    def read(self, method: str, choice: Choice | None, settings: str = "") -> Trial | None:
        """Return the trial that was made with the same model, data, versions and settings; None if there is none."""
        try:
            values = json.loads(self._file(method).read_text(encoding="utf-8"))
            if values.pop("key") != self._key(choice, settings):
                return None
            with np.load(self._file(method).with_suffix(".npz")) as arrays:
                kept = {name: arrays[name] for name in arrays.files}
            value, count = values.pop("value"), values.pop("count")
            trial = Trial(**values | {"kept": tuple(values["kept"])})
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
            return None
        there = self.reference.is_file() if choice is None else self._may_run(method)
        if not there and trial.status == "successful":
            return None
        return trial if value is None else replace(trial, score=Score(value=value, count=count, arrays=kept))

    def write(self, method: str, choice: Choice | None, trial: Trial, settings: str = "") -> None:
        """Save a trial that has a result; forget an earlier one if it has none."""
        if trial.unfinished or trial.status not in ("successful", "wrong result"):
            self._file(method).unlink(missing_ok=True)
            return
        score = trial.score or Score(value=math.nan)
        arrays: dict[str, Any] = dict(score.arrays)
        with naming(self._file(method).with_suffix(".npz")):
            np.savez_compressed(self._file(method).with_suffix(".npz"), **arrays)
        values = asdict(replace(trial, score=None)) | {"key": self._key(choice, settings), "count": score.count}
        values["value"] = None if trial.score is None else score.value
        write_whole(self._file(method), json.dumps(values, indent=1) + "\n")

    def _may_run(self, method: str) -> bool:
        """Return whether a method's artifact exists and may run: this user made any code in it on this machine."""
        folder = self.artifact(method)
        return is_artifact(folder) and is_made_here(folder)

    def _file(self, method: str) -> Path:
        return self.folder / "tries" / f"{method}.json"

    def _key(self, choice: Choice | None, settings: str) -> str:
        parts = [self._fingerprint, None if choice is None else choice.to_dict(), used_versions(choice), settings]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder against other searches, which would overwrite its artifacts; make it if it does not exist.

    The kernel releases the lock when this process ends, however it ends.

    Raises:
        UsageError: another search uses the folder, or nothing can be written there.
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
                "Wait until it ends, or choose another folder."
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            # Explicitly: a loader's processes that were forked meanwhile share the lock as long as they live.
            fcntl.flock(file, fcntl.LOCK_UN)


def used_versions(choice: Choice | None) -> dict[str, str]:
    """Return the versions of the packages that a conversion uses."""
    packages = ["boxwright", "numpy", "torch"]
    if choice is not None:
        try:
            packages += catalogue.find("runtime", choice.runtime).packages
        except UsageError:
            return {}
    return {package: found for package in packages if (found := installed_version(package))}
