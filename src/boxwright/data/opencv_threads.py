"""Switching off OpenCV's own threads while worker threads use it."""

import threading

import cv2

# OpenCV has one setting for the whole process, so the holders are counted.
_lock = threading.Lock()
_holders = 0
_before = 0


def hold() -> None:
    """Keep every OpenCV call of this process to the calling thread, until `release` is called as often.

    OpenCV's threads would run, and spin, on the cores that compute; worker threads keep theirs busy without them.
    """
    global _holders, _before
    with _lock:
        if not _holders:
            _before = cv2.getNumThreads()
            cv2.setNumThreads(1)
        _holders += 1


def release() -> None:
    """Undo one `hold`; the last call restores OpenCV's number of threads."""
    global _holders
    with _lock:
        _holders -= 1
        if not _holders:
            cv2.setNumThreads(_before)
