"""The files that run the server in containers: their required fields, flags that we take, and paths that we answer."""

import asyncio
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.asgi import call
from support.shared import ROOT
from support.toy import save_toy_onnx, toy_spec

import boxwright
from boxwright.cli import build_parser
from boxwright.serve.config import ServeConfig

pytest.importorskip("uvicorn")

FOLDER = ROOT / "deploy" / "serve"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
TOKEN = "a-token-for-tests-only"


def read(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def instruction(name: str) -> str:
    """Return what the last such line of the Dockerfile says."""
    return re.findall(rf"^{name} (.+)$", DOCKERFILE, re.MULTILINE)[-1]


ENTRYPOINT: list[str] = json.loads(instruction("ENTRYPOINT"))


def name_of(models: list[str]) -> dict[str, Path]:
    return {model.partition("=")[0].replace("/", "") if "=" in model else "best": Path(model) for model in models}


def check_flags(args: list[str], *, token: bool) -> ServeConfig:
    """The flags make a configuration that the server takes."""
    program, *words = ENTRYPOINT
    assert program == "boxwright"
    given = build_parser().parse_args([*words, *args])
    return ServeConfig(
        models=name_of(given.models), host=given.host, port=given.port,
        no_auth=given.no_auth, token=TOKEN if token else None, timeout_s=given.timeout,
        allow_host=tuple(given.allow_host),
    )  # fmt: skip


@pytest.fixture(scope="module")
def statuses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What a server with a token that is still loading answers to each path that the manifests name."""
    from boxwright import create_app

    app = create_app(save_toy_onnx(tmp_path_factory.mktemp("m") / "toy.onnx", spec=toy_spec()), token=TOKEN)
    text = "".join(path.read_text(encoding="utf-8") for path in FOLDER.iterdir())
    paths = sorted(set(re.findall(r"(?:path: |prometheus.io/path: |8000)(/[a-z0-9/]+)", text)))
    return {path: asyncio.run(call(app, "GET", path)).status for path in paths}


def test_every_path_of_a_probe_is_one_of_ours_and_needs_no_token(statuses: dict[str, int]) -> None:
    assert statuses == {
        "/healthz/live": 200, "/healthz/ready": 503, "/v2/health/live": 200, "/v2/health/ready": 503, "/metrics": 401,
    }  # fmt: skip


def test_the_image_has_no_torch_and_no_root() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def needed(names: str) -> Iterator[str]:
        for name in names.split(","):
            for requirement in extras[name]:
                inner = re.fullmatch(r"boxwright\[(.+)\]", requirement)
                yield from needed(inner[1]) if inner else [re.split(r"[<>=\[]", requirement)[0]]

    (chosen,) = re.findall(r"/src\[([a-z,]+)\]", DOCKERFILE)
    packages = set(needed(chosen))
    assert {"openvino", "onnxruntime", "starlette", "uvicorn"} <= packages
    assert not packages & {"torch", "lightning", "ray", "pyspark"}
    assert int(instruction("USER")) > 0


def test_the_image_refuses_to_start_open_to_all() -> None:
    config = check_flags(json.loads(instruction("CMD")), token=True)
    assert (config.host, config.port) == ("0.0.0.0", 8000)
    with pytest.raises(ValueError, match="Set a token"):
        check_flags(json.loads(instruction("CMD")), token=False)


def test_what_the_image_is_built_from_is_not_ignored() -> None:
    kept = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["path"]
    assert kept == {"src", "pyproject.toml", "constraints.txt", project["project"]["readme"], "LICENSE", hook}
    assert all((ROOT / name).exists() for name in kept)


def test_the_images_are_called_by_this_version() -> None:
    files = [*FOLDER.iterdir(), ROOT / "docs" / "how-to" / "serve.md"]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    assert set(re.findall(r"boxwright-(?:ray-)?serve:([0-9.]+)", text)) == {boxwright.__version__}


def check_container(container: dict[str, Any], volumes: list[dict[str, Any]]) -> None:
    assert container["image"].startswith("boxwright-")
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert {mount["name"] for mount in container.get("volumeMounts", [])} <= {volume["name"] for volume in volumes}


def test_the_kubernetes_deployment_probes_drains_and_is_locked_down() -> None:
    deployment, service = read("kubernetes.yaml")
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    spec = deployment["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    check_container(container, pod["volumes"])
    config = check_flags(container["args"], token=True)
    assert pod["terminationGracePeriodSeconds"] > config.timeout_s
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {env["name"] for env in container["env"]} == {"BOXWRIGHT_TOKEN"}
    (port,) = container["ports"]
    assert port["containerPort"] == config.port
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] == port["name"]
    assert container["livenessProbe"]["httpGet"]["path"].endswith("live")
    assert container["readinessProbe"]["httpGet"]["path"].endswith("ready")


def test_the_inference_service_is_one_of_kserve() -> None:
    (service,) = read("kserve.yaml")
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    predictor = service["spec"]["predictor"]
    (container,) = predictor["containers"]
    check_container(container, [])
    assert container["name"] == "kserve-container"
    assert container["env"][0]["name"] == "STORAGE_URI"
    config = check_flags(container["args"], token=False)
    assert config.allow_host == ("*",)
    assert predictor["timeout"] > config.timeout_s
    assert container["ports"][0]["containerPort"] == config.port


def test_the_compose_file_starts_the_image_and_prometheus_reads_it_with_the_token() -> None:
    (compose,) = read("compose.yaml")
    server, prometheus = compose["services"]["server"], compose["services"]["prometheus"]
    dockerfile = (FOLDER / server["build"]["context"] / server["build"]["dockerfile"]).resolve()
    assert dockerfile == FOLDER / "Dockerfile"
    assert all(port.startswith("127.0.0.1:") for one in (server, prometheus) for port in one["ports"])
    assert "BOXWRIGHT_TOKEN" in server["environment"]
    (settings,) = read("prometheus.yaml")
    (job,) = settings["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["server:8000"]
    mounted = {one["source"]: one["target"] for one in prometheus["configs"]}
    assert mounted["token"] == job["authorization"]["credentials_file"]
    assert compose["configs"]["prometheus"]["file"] == "./prometheus.yaml"


def test_the_ray_service_names_our_application_with_settings_that_we_take() -> None:
    (service,) = read("ray.yaml")
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    assert application["import_path"] == "boxwright.serve.ray_:build"
    args = application["args"]
    settings = set(args) - {"models", "cpus", "replicas"}
    assert settings <= set(ServeConfig.__dataclass_fields__)
    cluster = service["spec"]["rayClusterConfig"]
    (group,) = cluster["workerGroupSpecs"]
    assert [group["minReplicas"], group["maxReplicas"]] == args["replicas"]
    for one in (cluster["headGroupSpec"], group):
        pod = one["template"]["spec"]
        (container,) = pod["containers"]
        check_container(container, pod["volumes"])
        assert container["env"][0]["name"] == "BOXWRIGHT_TOKEN"
    assert int(container["resources"]["limits"]["cpu"]) == args["cpus"]
