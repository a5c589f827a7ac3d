"""The server inside another ASGI app, in this process."""

import asyncio
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.asgi import call
from support.scenes import scene
from support.toy import save_toy_onnx, toy_spec

from boxwright import Predictor, create_app

pytest.importorskip("uvicorn")
PIXELS = scene(("red", 1, 1), ("blue", 6, 6))
PICTURE = cv2.imencode(".png", PIXELS)[1].tobytes()


@pytest.mark.parametrize("first", ["/detector/predict", "/detector/v2/models/toy/infer"])
def test_a_mounted_server_starts_its_workers_with_the_first_picture(tmp_path: Path, first: str) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    model = save_toy_onnx(tmp_path / "toy.onnx", spec=toy_spec())
    server = create_app(model, workers=1)
    app = Starlette(routes=[Mount("/detector", server)])
    tensor = {"name": "pixels", "datatype": "UINT8", "shape": [1, 64, 64, 3], "data": PIXELS.tolist()}
    body = PICTURE if first.endswith("predict") else json.dumps({"inputs": [tensor]}).encode()

    async def talk() -> None:
        try:
            assert (await call(app, "GET", "/detector/healthz/ready")).status == 503
            answer = await call(app, "POST", first, body)
            assert answer.status == 200
            assert (await call(app, "GET", "/detector/healthz/ready")).status == 200
            assert (await call(app, "GET", "/detector/")).status == 200
            assert (await call(app, "GET", "/predict")).status == 404
            if first.endswith("predict"):
                with Predictor.load(model) as predictor:
                    assert answer.json["detections"] == predictor(PICTURE).to_list()
            else:
                found = {one["name"]: one["data"] for one in answer.json["outputs"]}
                assert np.shape(found["boxes"]) == (8,)
        finally:
            await server.close()

    asyncio.run(talk())
