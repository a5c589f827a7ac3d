"""`CheckedBefore`: the report on a set that was checked before and has not changed since."""

import hashlib
import os
import time
from functools import cached_property
from pathlib import Path

import numpy as np

from boxwright.core.environment import cache_folder
from boxwright.core.errors import DataError
from boxwright.core.log import get_logger
from boxwright.data.check.report import CheckReport
from boxwright.data.label_cache import FRESH_NS
from boxwright.data.packed import hash_records
from boxwright.data.records import Records, unpack_paths
from boxwright.data.shards import stat_image

_log = get_logger(__name__)

_KEPT = 200  # reports; those used longest ago are removed


class CheckedBefore:
    """The report on a set in the cache folder, under a hash of its labels and of its files' lengths and times.

    Args:
        records: the set.
        other: the other part of a divided set, which is checked for images that are in both.
        full: whether every image is decoded.
        fresh_ns: how long ago each file must have changed for its times to be trusted.
    """

    def __init__(self, records: Records, other: Records, *, full: bool, fresh_ns: int = FRESH_NS) -> None:
        self._records, self._other, self._full, self._fresh_ns = records, other, full, fresh_ns

    def load(self) -> CheckReport | None:
        """Return the report, None if there is none or something has changed."""
        file = self.place
        if file is None or not file.exists():
            return None
        try:
            report = CheckReport.load(file)
            os.utime(file)  # says when it was last used
        except (DataError, OSError):
            return None
        return report if report.checked == len(self._records) and report.root == str(self._records.root) else None

    def save(self, report: CheckReport) -> None:
        """Keep a report on this set."""
        file = self.place
        if file is None:
            return
        try:
            report.save(file)
            kept = sorted(file.parent.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
            for old in kept[:-_KEPT]:
                old.unlink(missing_ok=True)
        except (DataError, OSError) as error:
            _log.debug("The report is not kept: %s", error)

    @cached_property
    def place(self) -> Path | None:
        """The report's file, None if a file of the set is too fresh."""
        digest = hashlib.sha256(b"full" if self._full else b"quick")
        newest = 0
        for records in (self._records, self._other) if self._full else (self._records,):
            digest.update(hash_records(records).encode())
            states = np.zeros((len(records), 3), np.int64)
            root = str(records.root)
            for n, name in enumerate(unpack_paths(records)):
                try:
                    found = stat_image(os.path.join(root, name))
                    states[n] = found.st_size, found.st_mtime_ns, found.st_ctime_ns
                except (OSError, ValueError):
                    states[n] = -1
            newest = max(newest, int(states[:, 1:].max(initial=0)))
            digest.update(states.tobytes())
        # A file may be written again within the clock's resolution.
        if newest > time.time_ns() - self._fresh_ns:
            return None
        return cache_folder("reports") / f"{digest.hexdigest()[:40]}.json"
