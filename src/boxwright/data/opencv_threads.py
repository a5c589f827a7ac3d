"""OpenCV's own threads, which must rest while worker threads use it."""

import threading

import cv2

# OpenCV has one setting for the whole process, so there is one count of those who need it off.
_lock = threading.Lock()
_holders = 0
_before = 0


def hold() -> None:
    """Let every OpenCV call of this process use the calling thread alone, until `release` is called as often.

    OpenCV's threads would run, and spin, on the cores that compute; worker threads keep theirs busy without them.
    """
    global _holders, _before
    with _lock:
        if not _holders:
            _before = cv2.getNumThreads()
            cv2.setNumThreads(1)
        _holders += 1


def release() -> None:
    """Undo one `hold`; the last one gives OpenCV as many threads as it had."""
    global _holders
    with _lock:
        _holders -= 1
        if not _holders:
            cv2.setNumThreads(_before)
