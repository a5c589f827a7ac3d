"""Pictures of several requests in one batch, for a GPU: each thread brings one and gets its own output."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import CheckpointError
from boxwright.core.spec import Spec
from boxwright.runtimes.base import Session

Array = NDArray[np.float32]


class _Call:
    """A thread that waits for its output."""

    __slots__ = ("done", "error", "images", "output")

    def __init__(self, images: Array) -> None:
        self.images = images
        self.output: Array | None = None
        self.error: Exception | None = None
        self.done = threading.Event()


class BatchingSession:
    """A session that joins the calls of several threads.

    A batch starts when it is full, when `wait_s` has passed since its first picture, or when no other request is on
    its way: a lone client never waits.

    Example:
        >>> class Double:
        ...     spec = Spec(names=("cat",), size_hw=(32, 32))
        ...     def __call__(self, images): return images * 2
        ...     def close(self): pass
        >>> session = BatchingSession(Double(), batch=8, wait_s=0.01)
        >>> with session.request():
        ...     session(np.ones((1, 2), np.float32))
        array([[2., 2.]], dtype=float32)
        >>> session.close()
    """

    def __init__(self, session: Session, *, batch: int, wait_s: float) -> None:
        self.spec: Spec = session.spec
        self._session, self._batch, self._wait_s = session, batch, wait_s
        self._waiting: deque[_Call] = deque()
        self._changed = threading.Condition()
        self._on_their_way = 0
        self._closed = False
        self._thread = threading.Thread(target=self._compute, name="boxwright-batch", daemon=True)
        self._thread.start()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Announce that this thread will bring pictures, until the block ends."""
        with self._changed:
            self._on_their_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._on_their_way -= 1
                self._changed.notify_all()

    def __call__(self, images: Array) -> Array:
        """Return the outputs of these images, computed together with those of other threads."""
        call = _Call(images)
        with self._changed:
            if self._closed:
                raise CheckpointError("This session is closed. Load the model again.")
            self._waiting.append(call)
            self._changed.notify_all()
        call.done.wait()
        if call.error is not None:
            raise call.error
        assert call.output is not None
        return call.output

    def close(self) -> None:
        """End the thread, then release the session."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._session.close()

    def _compute(self) -> None:
        while calls := self._gather():
            try:
                images = np.concatenate([call.images for call in calls]) if len(calls) > 1 else calls[0].images
                outputs = self._session(images)
            except Exception as error:  # noqa: BLE001  every waiting thread gets it
                for call in calls:
                    call.error = error
                    call.done.set()
                continue
            at = 0
            for call in calls:
                call.output = outputs[at : at + len(call.images)]
                at += len(call.images)
                call.done.set()

    def _gather(self) -> list[_Call]:
        """Return the calls of the next batch; none when the session is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            end_s = time.monotonic() + self._wait_s
            while len(self._waiting) < min(self._batch, self._on_their_way) and not self._closed:
                if not self._changed.wait(end_s - time.monotonic()) or time.monotonic() >= end_s:
                    break
            return [self._waiting.popleft() for _ in range(min(self._batch, len(self._waiting)))]
