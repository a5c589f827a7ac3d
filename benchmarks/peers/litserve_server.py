"""python litserve_server.py ARTIFACT PORT WORKERS: LitServe with the same artifact, for benchmarks/serving.py.

One worker has all cores for each picture; several share them, a picture each.
"""

import sys

import cv2
import litserve
from fastapi import Request

from boxwright import Predictor
from boxwright.core.cpu import read_cpu
from boxwright.runtimes.base import Tuning
from boxwright.tasks.models import open_model

ARTIFACT, PORT, WORKERS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


class Detector(litserve.LitAPI):
    """A picture of a form in, detections out."""

    def setup(self, device: str) -> None:  # noqa: ARG002
        """Load the artifact in a worker."""
        cv2.setNumThreads(0 if WORKERS == 1 else 1)
        tuning = Tuning(threads=max(1, read_cpu().usable_cores // WORKERS), hint="latency")
        self.predictor = Predictor(open_model(ARTIFACT, tuning=tuning))

    def decode_request(self, request: Request) -> bytes:
        """Return the bytes of the picture."""
        return request["image"].file.read()

    def predict(self, x: bytes) -> object:
        """Return the detections."""
        return self.predictor(x)

    def encode_response(self, output: object) -> dict[str, object]:
        """Return them as JSON values."""
        return {"size_hw": list(output.size_hw), "detections": output.to_list()}


if __name__ == "__main__":
    server = litserve.LitServer(Detector(), accelerator="cpu", workers_per_device=WORKERS, timeout=30)
    server.run(host="127.0.0.1", port=PORT, log_level="error", generate_client_file=False)
