"""The load generator behind benchmarks/serving.py counts what really happened."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import pytest
from support.scenes import scene
from support.server import Server
from support.shared import ROOT
from support.toy import save_toy_onnx, toy_spec

from boxwright import Predictor

pytest.importorskip("uvicorn")
PICTURES = [cv2.imencode(".png", scene(*squares))[1].tobytes() for squares in ([("red", 1, 1)], [("blue", 2, 3)])]


def run(folder: Path, port: int, answers: list[bytes], **spec: Any) -> dict[str, Any]:
    names: dict[str, list[str]] = {"requests": [], "answers": []}
    requests = [
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(d) + d for d in PICTURES
    ]
    for kind, contents in (("requests", requests), ("answers", answers)):
        for number, content in enumerate(contents):
            (folder / f"{kind}{number}").write_bytes(content)
            names[kind].append(str(folder / f"{kind}{number}"))
    (folder / "spec.json").write_text(json.dumps({"port": port, **names, **spec}))
    command = [sys.executable, str(ROOT / "benchmarks" / "load.py"), str(folder / "spec.json")]
    return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)


def test_it_counts_answers_compares_them_and_keeps_a_rate(tmp_path: Path) -> None:
    model = save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec())
    with Predictor.load(model) as predictor:
        found = [predictor(data) for data in PICTURES]
    records = [{"model": "toy", "size_hw": list(one.size_hw), "detections": one.to_list()} for one in found]
    answers = [json.dumps(record)[:-1].encode() for record in records]
    with Server(model, "--workers", 1, log=tmp_path / "log") as server:
        right = run(tmp_path, server.port, answers, clients=3, count=40)
        assert right["statuses"] == {"200": 40}
        assert (right["wrong"], right["failures"], len(right["taken_ms"])) == (0, 0, 40)
        swapped = run(tmp_path, server.port, answers[::-1], clients=2, count=10)
        assert (swapped["statuses"], swapped["wrong"]) == ({"200": 10}, 10)
        timed = run(tmp_path, server.port, answers, clients=8, seconds=1.0, rate=30.0)
        assert 10 < sum(timed["statuses"].values()) < 60
    gone = run(tmp_path, server.port, answers, clients=2, seconds=0.3)
    assert gone["statuses"] == {}
    assert gone["failures"] >= 2
