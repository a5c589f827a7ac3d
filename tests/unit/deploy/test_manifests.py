"""The Kubernetes manifests: their required fields, and commands that our own parser takes."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.shared import ROOT

from boxwright.cli import build_parser

DEPLOY = ROOT / "deploy"
RAY = sorted(DEPLOY.glob("ray_*.yaml"))
SPARK = sorted(DEPLOY.glob("spark_*.yaml"))


def read(path: Path) -> dict[str, Any]:
    (document,) = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    return document


def ray_pods(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cluster = spec["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        yield group["template"]["spec"]


def check_mounts(volumes: list[dict[str, Any]], mounts: list[dict[str, Any]]) -> None:
    assert {mount["name"] for mount in mounts} <= {volume["name"] for volume in volumes}
    assert all(mount["mountPath"].startswith("/") for mount in mounts)


def check_paths(args: Any, folder: str) -> None:
    """Whatever the command reads or writes must be on the volume that all pods share."""
    paths = [args.model, *args.sources, args.out] if args.verb == "predict" else [str(args.data), str(args.output_dir)]
    assert all(path.startswith(f"{folder}/") for path in paths)


@pytest.mark.parametrize("path", RAY, ids=lambda path: path.stem)
def test_a_ray_job_has_what_kuberay_asks_for_and_a_command_that_we_take(path: Path):
    job = read(path)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["metadata"]["name"].startswith("boxwright")
    spec = job["spec"]
    assert spec["shutdownAfterJobFinishes"] is True
    program, *words = shlex.split(spec["entrypoint"])
    args = build_parser().parse_args(words)
    assert program == "boxwright"
    assert (args.engine if args.verb == "predict" else args.strategy) == "ray"
    assert getattr(args, "address", None) is None  # inside a job, Ray says where it is
    check_paths(args, "/data")
    for pod in ray_pods(spec):
        (container,) = pod["containers"]
        assert container["image"].startswith("boxwright-")
        assert container["resources"]["requests"] == container["resources"]["limits"]
        check_mounts(pod["volumes"], container["volumeMounts"])
    for group in spec["rayClusterSpec"]["workerGroupSpecs"]:
        assert group["groupName"]
        assert 1 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    if args.verb == "train":
        assert args.num_processes == sum(g["replicas"] for g in spec["rayClusterSpec"]["workerGroupSpecs"])


@pytest.mark.parametrize("path", SPARK, ids=lambda path: path.stem)
def test_a_spark_application_has_what_the_operator_asks_for_and_a_command_that_we_take(path: Path):
    application = read(path)
    assert (application["apiVersion"], application["kind"]) == ("sparkoperator.k8s.io/v1beta2", "SparkApplication")
    spec = application["spec"]
    assert (spec["type"], spec["mode"]) == ("Python", "cluster")
    assert (DEPLOY / Path(spec["mainApplicationFile"].removeprefix("local://")).name).is_file()
    assert all(isinstance(word, str) for word in spec["arguments"])
    args = build_parser().parse_args(spec["arguments"])
    assert args.engine == "spark"
    assert args.master is None  # the session of spark_main.py has spark-submit's
    assert args.workers is None
    check_paths(args, "/data")
    assert all(isinstance(value, str) for value in spec["sparkConf"].values())
    assert spec["restartPolicy"]["type"] in ("Never", "OnFailure", "Always")
    for part in ("driver", "executor"):
        assert spec[part]["cores"] >= 1
        check_mounts(spec["volumes"], spec[part]["volumeMounts"])
    assert spec["executor"]["instances"] >= 1
    assert int(spec["sparkConf"]["spark.task.cpus"]) <= spec["executor"]["cores"]


def test_there_are_manifests_of_both_kinds():
    assert RAY
    assert SPARK
