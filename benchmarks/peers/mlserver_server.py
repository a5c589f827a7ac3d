"""python mlserver_server.py ARTIFACT PORT WORKERS: MLServer with the same artifact, for benchmarks/serving.py.

One worker has all cores for each picture; several share them, a picture each.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import cv2
from mlserver import MLModel
from mlserver.codecs import Base64Codec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse

from boxwright import Predictor
from boxwright.core.cpu import read_cpu
from boxwright.runtimes.base import Tuning
from boxwright.tasks.models import open_model


class Detector(MLModel):
    """A picture in base64 in, detections as JSON text out."""

    async def load(self) -> bool:
        """Load the artifact in a worker."""
        values = self.settings.parameters.extra
        cv2.setNumThreads(0 if values["workers"] == 1 else 1)
        tuning = Tuning(threads=max(1, read_cpu().usable_cores // values["workers"]), hint="latency")
        self.predictor = Predictor(open_model(values["artifact"], tuning=tuning))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Return the detections."""
        (picture,) = Base64Codec.decode_input(payload.inputs[0])
        found = self.predictor(picture)
        text = json.dumps({"size_hw": list(found.size_hw), "detections": found.to_list()})
        return InferenceResponse(model_name=self.name, outputs=[StringCodec.encode_output("detections", [text])])


def main(artifact: str, port: int, workers: int) -> None:
    """Write the settings and run MLServer's own command."""
    with tempfile.TemporaryDirectory() as folder:
        extra = {"artifact": artifact, "workers": workers}
        model = {"name": "detector", "implementation": "mlserver_server.Detector", "parameters": {"extra": extra}}
        settings = {
            "host": "127.0.0.1", "http_port": port, "grpc_port": port + 1, "metrics_port": port + 2,
            "parallel_workers": workers, "metrics_dir": folder, "debug": False,
        }  # fmt: skip
        (Path(folder) / "model-settings.json").write_text(json.dumps(model))
        (Path(folder) / "settings.json").write_text(json.dumps(settings))
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        command = [str(Path(sys.executable).parent / "mlserver"), "start", folder]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
