"""What a worker does with one request: decode, predict, and encode the answer."""

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from threading import Lock
from typing import Any, NamedTuple

import cv2
import numpy as np

from boxwright.core.environment import max_pixels
from boxwright.core.errors import BoxwrightError, DataError, UsageError
from boxwright.core.log import get_logger
from boxwright.runtimes.base import Session
from boxwright.serve.batching import BatchingSession
from boxwright.serve.wire import Head
from boxwright.tasks.predict.inputs import EncodedImage, Failure
from boxwright.tasks.predict.predictor import Prediction, Predictor, Thresholds
from boxwright.vision.draw import draw_detections
from boxwright.vision.size import find_size_hw

_log = get_logger(__name__)
_LARGE = 4_000_000  # pixels; larger pictures are decoded one at a time, which bounds the memory of a worker
_NO_MEMORY = ("can't allocate memory", "Insufficient memory", "bad_alloc", "out of memory")
JSON, JPEG = "application/json", "image/jpeg"
Result = tuple[str, bytes, dict[str, str]]
"""Content type, body and further headers."""


class Answer(NamedTuple):
    """The answer to one request; `broken`: the worker must be replaced; `extra`: headers of the answer."""

    status: int
    kind: str
    body: bytes
    timings_ms: dict[str, float]
    broken: bool = False
    extra: dict[str, str] | None = None


class TooLarge(BoxwrightError):
    """A picture that a worker has no memory for."""


def error_body(text: str) -> bytes:
    """Return the JSON of an error."""
    return json.dumps({"error": text}, ensure_ascii=False).encode()


class Answerer:
    """Answers requests with a loaded model, from several threads."""

    def __init__(self, name: str, session: Session, quick: Session | None = None) -> None:
        """Make it.

        Args:
            name: of the model.
            session: computes several pictures side by side.
            quick: computes a single picture with all cores, where that is another session.
        """
        self.name = name
        self.session = session
        self._quick = quick or session
        self._large = Lock()
        self._announce = session.request if isinstance(session, BatchingSession) else nullcontext

    def __call__(self, head: Head, body: bytes) -> Answer:
        """Return the answer; errors are answers too."""
        started = time.monotonic()
        if started > head["deadline"]:
            return Answer(504, JSON, error_body("The request waited longer than the server's --timeout."), {})
        timings = {"queue": (started - head["arrived"]) * 1000}
        work: Callable[[Head, bytes, dict[str, float]], Result] = {
            "predict": self._predict,
            "infer": self._infer,
        }[head["op"]]
        try:
            with self._announce():
                kind, answer, extra = work(head, body, timings)
        except Exception as error:  # noqa: BLE001  a process border: every error becomes an answer
            status, text, broken = _describe(error)
            if status >= 500:
                _log.error("A request to %s failed: %s", self.name, text, exc_info=error)
            return Answer(status, JSON, error_body(text), timings, broken)
        return Answer(200, kind, answer, timings, extra=extra)

    def predictor(self, head: Head) -> Predictor:
        """Return a predictor with the thresholds of a request."""
        given = {name: head[name] for name in ("conf", "nms", "classes") if head.get(name) is not None}
        if "classes" in given:
            given["classes"] = tuple(given["classes"])
        return Predictor(self._quick if head.get("alone") else self.session, Thresholds(**given))

    def find(self, predictor: Predictor, name: str, data: bytes) -> Prediction:
        """Return the prediction for an encoded picture.

        Raises:
            DataError: it can't be read.
            TooLarge: it has too many pixels.
        """
        if not data:
            raise DataError(f"{name} is empty. Send the bytes of a picture.")
        pixels = _check_size(name, data)
        with self._large if pixels > _LARGE else nullcontext():
            found = next(predictor.stream([EncodedImage(source=name, data=data)]))
        if isinstance(found, Failure):
            cause = found.error.__cause__
            if isinstance(cause, cv2.error) and cause.code == cv2.Error.StsNoMem:
                raise TooLarge(
                    f"{name} takes more memory than a worker of this server has. Make it smaller."
                ) from cause
            raise found.error
        return found

    def _predict(self, head: Head, body: bytes, timings: dict[str, float]) -> Result:
        predictor = self.predictor(head)
        found = self.find(predictor, head.get("source", "The picture"), body)
        timings |= {name: seconds * 1000 for name, seconds in predictor.watch.seconds.items()}
        if head.get("draw"):
            drawn = draw_detections(found.frame.image, found.detections)
            return JPEG, cv2.imencode(".jpg", drawn)[1].tobytes(), {}
        timings["total"] = (time.monotonic() - head["arrived"]) * 1000
        record: dict[str, Any] = {"source": head["source"]} if "source" in head else {}
        record |= {
            "model": self.name,
            "size_hw": list(found.detections.size_hw),
            "detections": found.detections.to_list(),
            "timings_ms": {name: round(value, 3) for name, value in timings.items()},
        }
        return JSON, json.dumps(record, ensure_ascii=False).encode(), {}

    def _infer(self, head: Head, body: bytes, timings: dict[str, float]) -> Result:
        from boxwright.serve.tensors import infer

        return infer(self, head, body, timings)


def _check_size(name: str, data: bytes) -> int:
    """Return the pixels that a picture's header claims.

    Raises:
        TooLarge: they are more than the server takes.
    """
    height, width = find_size_hw(data) or (0, 0)
    if height * width > max_pixels():
        raise TooLarge(
            f"{name} has {width} x {height} pixels; this server takes at most {max_pixels():,}. Make it smaller."
        )
    return height * width


def _describe(error: Exception) -> tuple[int, str, bool]:
    """Return the status, the sentence, and whether the worker must be replaced."""
    text = str(error).strip()
    if isinstance(error, TooLarge):
        return 413, text, False
    if isinstance(error, UsageError):
        return 400, text, False
    if isinstance(error, DataError):
        return 422, text, False
    if isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY):
        return 413, "The request takes more memory than a worker of this server has. Send smaller pictures.", True
    if isinstance(error, BoxwrightError):
        return 500, text.splitlines()[0], False
    return 500, "The model failed on this request; the server's log says how.", False


def warm_up(answerer: Answerer, rounds: int = 3) -> float:
    """Run pictures through both sessions and return the seconds of the last one."""
    picture = cv2.imencode(".jpg", np.full((480, 640, 3), 114, np.uint8))[1].tobytes()
    taken = 0.0
    for alone in (True, False) * rounds:
        now = time.monotonic()
        answer = answerer({"op": "predict", "alone": alone, "arrived": now, "deadline": now + 3600}, picture)
        if answer.status != 200:
            raise DataError(f"The model can't predict: {json.loads(answer.body)['error']}")
        taken = time.monotonic() - now
    return taken
