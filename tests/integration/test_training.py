"""Training as a whole: it learns, resumes bit-identically after a stop, and survives signals, kills and bad data."""

import json
import os
import signal
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from support.clusters import further

from boxwright.accel.checkpoint import load_checkpoint
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import CheckpointError, DataError, UsageError
from boxwright.core.files import write_whole
from boxwright.data.caches import list_caches
from boxwright.data.synthetic import generate_scenes
from boxwright.detector.weights import read_state
from boxwright.devices.cpu import CpuDevice
from boxwright.tasks.predict.predictor import Predictor
from boxwright.tasks.train import loop
from boxwright.tasks.train.loggers import Callback
from boxwright.tasks.train.pictures import find_pictures
from boxwright.tasks.train.run import TrainConfig, train

WAIT_S = 120.0


def make_config(scenes: Path, out: Path, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "model": "yolox_nano", "data": scenes, "output_dir": out, "val": 0.25, "batch": 4, "steps": 12,
        "size_hw": (96, 96), "eval_interval": 0, "print_interval": 4, "workers": 1,
    }  # fmt: skip
    return TrainConfig(**(settings | changes))


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return read_state(folder / "weights" / "last.safetensors")[0]


def test_the_precision_auto_is_recorded_and_a_resumed_run_keeps_it(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_cpu_with(*isa: str) -> None:
        cpu = replace(read_cpu(), isa=frozenset(isa))
        monkeypatch.setattr("boxwright.tasks.train.run.read_cpu", lambda: cpu)

    config = make_config(scenes, tmp_path, steps=2, precision="auto")
    on_cpu_with("avx512", "bf16")
    train(config)
    on_cpu_with("avx2")
    train(replace(config, resume=True))
    assert "precision: bf16" in (config.output_dir / "args.yaml").read_text()
    assert (config.output_dir / "plan.txt").read_text().splitlines()[1].startswith("precision    bf16 (")


def test_a_run_leaves_every_promised_file_and_a_model_that_loads(scenes: Path, tmp_path: Path) -> None:
    result = train(make_config(scenes, tmp_path / "run", steps=9, eval_interval=1, save_history_ckpt=True))
    folder = tmp_path / "run"
    for name in (
        "args.yaml", "plan.txt", "metrics.jsonl", "results.csv", "data_report.json", "data.lock", "report.html",
        "curves.png",
        "weights/last.pt", "weights/last.safetensors", "weights/best.safetensors", "weights/step_5.safetensors",
    ):  # fmt: skip
        assert (folder / name).is_file(), name
    assert result.steps == 9
    assert set(result.best) == {"AP", "AP50", "AP75", "AR100", "step"}
    state, spec = read_state(result.checkpoint)
    assert spec is not None
    assert spec.names == ("circle", "square")
    assert spec.size_hw == (96, 96)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "total" in line] == [4, 8, 9]
    assert list(find_pictures(folder)) == [line["step"] for line in lines if "AP" in line]
    assert "data:image/jpeg;base64," in (folder / "report.html").read_text()
    assert all(torch.isfinite(v).all() for v in state.values() if v.is_floating_point())


def test_the_loss_falls(scenes: Path, tmp_path: Path) -> None:
    train(make_config(scenes, tmp_path, steps=60, batch=8, mosaic=False, lr_per_image=0.001, print_interval=1))
    losses = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    totals = [line["total"] - line["l1"] for line in losses if "total" in line]
    assert sum(totals[-10:]) < 0.9 * sum(totals[:10])


class StopAt(Callback):
    """Asks the program to stop, as a system that shuts down does, once a step is reached."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step(self, step: int, values: Any) -> None:
        if step == self._step:
            os.kill(os.getpid(), signal.SIGTERM)


# Mosaic and the averaged weights are on; the stops are in mid-epoch, and one in the last phase.
UNINTERRUPTED: dict[str, Any] = {"print_interval": 1, "no_aug_epochs": 1.0}


@pytest.fixture(scope="module")
def whole(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    assert train(make_config(scenes, folder, **UNINTERRUPTED)).steps == 12
    return folder


@pytest.mark.xdist_group("whole")
@pytest.mark.parametrize("stop", [3, 7, 10])
def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one_bit_by_bit(
    scenes: Path, whole: Path, tmp_path: Path, stop: int
) -> None:
    settings = UNINTERRUPTED | {"worker_kind": "threads" if stop == 3 else "processes"}  # the samples are the same
    first = train(make_config(scenes, tmp_path / "parts", **settings), callbacks=[StopAt(stop)])
    assert (first.stopped, first.steps) == ("signal 15", stop)
    write_whole(tmp_path / "parts" / "pictures" / "step_00000099.jpg", b"of a step that will be repeated")
    second = train(make_config(scenes, tmp_path / "parts", resume=True, **settings))
    assert (second.stopped, second.steps) == ("", 12)
    a, b = (load_checkpoint(folder / "weights" / "last.pt") for folder in (whole, tmp_path / "parts"))
    for part in ("model", "average"):
        assert a[part].keys() == b[part].keys()
        for key, value in a[part].items():
            assert torch.equal(value, b[part][key]), (part, key)
    for x, y in zip(a["optimizer"]["state"].values(), b["optimizer"]["state"].values(), strict=True):
        assert torch.equal(x["momentum_buffer"], y["momentum_buffer"])
    assert weights_of(whole).keys() == weights_of(tmp_path / "parts").keys()
    sheets = [find_pictures(folder) for folder in (whole, tmp_path / "parts")]
    assert [list(sheet) for sheet in sheets] == [[12], [12]]
    assert sheets[0][12].read_bytes() == sheets[1][12].read_bytes()


def test_two_processes_train_and_score_every_image_once(scenes: Path, tmp_path: Path) -> None:
    result = train(make_config(scenes, tmp_path, num_processes=2, steps=4))
    assert result.steps == 4
    assert result.last["AP"] >= 0
    assert "2 (subprocess)" in (tmp_path / "plan.txt").read_text()
    assert list(find_pictures(tmp_path)) == [4]


@pytest.mark.xdist_group("by_hand")
def test_two_processes_fill_one_cache_and_learn_the_same_as_without(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    learnt = {}
    for cache in ("none", "disk"):
        train(make_config(scenes, tmp_path / cache, num_processes=2, steps=6, cache=cache))
        learnt[cache] = weights_of(tmp_path / cache)
    assert all(torch.equal(value, learnt["disk"][name]) for name, value in learnt["none"].items())
    assert next(use.bytes for use in list_caches() if use.name == "tiles") > 500_000  # most of 18 images
    assert len(list((tmp_path / "cache" / "tiles").glob("*.tiles"))) == 1


def test_a_killed_rank_ends_the_run_and_resume_goes_on(by_hand: dict[str, Any]) -> None:
    assert by_hand["step"] == 8  # making the fixture checks the error and the checkpoint in between


def start_cli(scenes: Path, out: Path, *words: str) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "boxwright", "train", "--data", str(scenes), "--out", str(out), "--val", "0.25",
        "-b", "4", "--size", "96", "steps", "100000", "print_interval", "1", "workers=1", *words,
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for_steps(process: subprocess.Popen[str], count: int) -> None:
    assert process.stderr is not None
    seen = 0
    for line in process.stderr:
        seen += "step " in line and "loss" in line
        if seen >= count:
            return
    raise AssertionError("the run ended before its steps")


@pytest.mark.parametrize(
    ("number", "code", "processes", "worker_kind"),
    [
        (signal.SIGTERM, 143, 1, "threads"),
        pytest.param(signal.SIGTERM, 143, 1, "processes", marks=pytest.mark.more),
        (signal.SIGINT, 130, 1, "processes"),
        (signal.SIGTERM, 143, 2, "threads"),
        pytest.param(signal.SIGINT, 130, 2, "threads", marks=pytest.mark.more),
    ],
)
def test_a_signal_in_mid_epoch_leaves_a_checkpoint_a_result_an_exit_code_and_no_orphan(
    scenes: Path, tmp_path: Path, number: signal.Signals, code: int, processes: int, worker_kind: str
) -> None:
    words = ("--num_processes", str(processes), "--json", f"worker_kind={worker_kind}")
    with start_cli(scenes, tmp_path / "run", *words) as process:
        wait_for_steps(process, 3)
        children = psutil.Process(process.pid).children(recursive=True)
        if worker_kind == "processes":
            os.killpg(process.pid, number)  # as a terminal does, and some batch systems
        else:
            process.send_signal(number)
        out, log = process.communicate(timeout=WAIT_S)
        assert process.returncode == code, log
    _, alive = psutil.wait_procs(children, timeout=WAIT_S)
    assert not alive
    result = json.loads(out)
    assert result["stopped"] == f"signal {number.value}"
    assert result["steps"] >= 3
    assert load_checkpoint(tmp_path / "run" / "weights" / "last.pt")["step"] == result["steps"]


class TermOther(Callback):
    """At a step, has the other process told to stop, as a node that is being emptied does."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step(self, step: int, values: Any) -> None:
        if step == self._step:
            (other,) = [
                child
                for child in psutil.Process(os.getppid()).children()
                if child.pid != os.getpid() and "boxwright.launchers.worker" in " ".join(child.cmdline())
            ]
            other.send_signal(signal.SIGTERM)


def test_a_signal_to_one_process_stops_all_at_the_same_step_and_resume_learns_the_same(
    scenes: Path, tmp_path: Path
) -> None:
    settings = {"num_processes": 2, "steps": 8, "print_interval": 1}
    first = train(make_config(scenes, tmp_path / "parts", **settings), callbacks=[TermOther(2)])
    assert first.stopped == "signal 15"
    assert 2 <= first.steps < 8
    saved = load_checkpoint(tmp_path / "parts" / "weights" / "last.pt")
    assert (saved["step"], saved["world_size"]) == (first.steps, 2)
    assert train(make_config(scenes, tmp_path / "parts", resume=True, **settings)).steps == 8
    train(make_config(scenes, tmp_path / "whole", **settings))
    a, b = (load_checkpoint(tmp_path / name / "weights" / "last.pt") for name in ("whole", "parts"))
    for part in ("model", "average"):
        for key, value in a[part].items():
            # A stop averages the statistics of both processes once more; the weights don't depend on them.
            if not key.endswith(("running_mean", "running_var")):
                assert torch.equal(value, b[part][key]), (part, key)


def test_a_killed_parent_leaves_no_orphan(scenes: Path, tmp_path: Path) -> None:
    with start_cli(scenes, tmp_path / "run", "--num_processes", "2", "worker_kind=processes") as process:
        wait_for_steps(process, 2)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 4
        process.kill()
        _, alive = psutil.wait_procs(children, timeout=WAIT_S)
        assert not alive
        process.communicate(timeout=WAIT_S)


def test_a_loss_that_is_no_number_is_named_with_its_step_and_images(scenes: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"step \d+ is (nan|inf).*\.jpg.*lr_per_image"):
        train(make_config(scenes, tmp_path, lr_per_image=1e6, steps=30, print_interval=5))


def test_a_set_with_too_many_faults_is_refused_with_the_report(scenes: Path, tmp_path: Path) -> None:
    records = generate_scenes(tmp_path / "set", images=10, seed=1, size_hw=(64, 64))
    for i in range(4):
        records.path(i).write_bytes(b"")
    with pytest.raises(DataError, match=r"images have errors.*data_report\.json"):
        train(make_config(tmp_path / "set", tmp_path / "run"))
    assert (tmp_path / "run" / "data_report.json").is_file()


def test_bad_samples_below_the_limit_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = generate_scenes(tmp_path / "set", images=24, seed=1, size_hw=(64, 64))
    records.path(3).write_bytes(b"")
    with caplog.at_level("INFO"):
        train(make_config(tmp_path / "set", tmp_path / "run", steps=1, max_error_rate=0.2))
    name = records.relative_path(3)
    assert f"Left out: {name!r}" in caplog.text or "1 error" not in caplog.text


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "yolox_q"}, UsageError, "Unknown model 'yolox_q'"),
        ({"batch": 3, "accumulate": 2}, UsageError, "Use a multiple of 2"),
        ({"freeze": ("nowhere",)}, UsageError, "names no part of the network"),
        ({"loggers": ("wandbb",)}, UsageError, "Did you mean 'wandb'"),
        ({"resume": True}, CheckpointError, "before its first save"),
        ({"num_processes": 999, "batch": 999}, UsageError, "physical cores"),
        ({"data": Path("/nowhere")}, DataError, "There is no data set"),
        ({"ckpt": Path("/nowhere.pth")}, CheckpointError, "There is no model file"),
    ],
)
def test_bad_settings_get_one_clear_sentence(
    scenes: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        train(make_config(scenes, tmp_path / "run", **changes))


@pytest.mark.parametrize(
    "changes", [{"accumulate": 0}, {"steps": 0}, {"batch": -1}, {"lr_per_image": 0.0}, {"train_split": "a"}]
)
def test_impossible_numbers_are_refused_at_once(scenes: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        make_config(scenes, tmp_path, **changes)


def test_a_folder_with_a_run_is_not_overwritten(scenes: Path, tmp_path: Path) -> None:
    train(make_config(scenes, tmp_path, steps=1))
    with pytest.raises(UsageError, match="holds a run already"):
        train(make_config(scenes, tmp_path, steps=1))


def test_resuming_another_course_is_refused_and_leaves_the_folder_as_it_was(scenes: Path, tmp_path: Path) -> None:
    train(make_config(scenes, tmp_path, steps=2))
    before = {name: (tmp_path / name).read_bytes() for name in ("args.yaml", "plan.txt")}
    with pytest.raises(CheckpointError, match="a run of 2 steps"):
        train(make_config(scenes, tmp_path, steps=3, resume=True, precision="bf16"))
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(
    ("precision", "ema"),
    [
        ("64", True),
        ("bf16-true", True),
        ("16", False),
        *further(("64", False), ("bf16-true", False), ("16", True)),
    ],
)
def test_a_run_in_any_numbers_is_scored_and_ends(scenes: Path, tmp_path: Path, precision: str, ema: bool) -> None:
    result = train(make_config(scenes, tmp_path, steps=1, precision=precision, ema=ema))
    assert (tmp_path / "result.json").is_file()
    assert set(result.best) == {"AP", "AP50", "AP75", "AR100", "step"}
    Predictor.load(result.checkpoint)(np.zeros((96, 96, 3), np.uint8))


def test_a_resumed_run_says_that_its_data_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = generate_scenes(tmp_path / "set", images=24, seed=1, size_hw=(64, 64))
    settings = {"steps": 4, "print_interval": 1}
    train(make_config(tmp_path / "set", tmp_path / "run", **settings), callbacks=[StopAt(2)])
    for i in range(len(records)):
        records.path(i).write_bytes(records.path(i).read_bytes() + b" ")
    train(make_config(tmp_path / "set", tmp_path / "run", resume=True, **settings))
    assert "The data changed since the run began" in caplog.text


def test_resuming_with_another_model_is_refused_and_leaves_the_folder_as_it_was(scenes: Path, tmp_path: Path) -> None:
    train(make_config(scenes, tmp_path, steps=2))
    before = (tmp_path / "args.yaml").read_bytes()
    with pytest.raises(CheckpointError, match=r"model was 'yolox_nano' and is 'yolox_tiny'"):
        train(make_config(scenes, tmp_path, steps=2, resume=True, model="yolox_tiny"))
    assert (tmp_path / "args.yaml").read_bytes() == before


def test_weights_that_are_no_numbers_are_never_saved(scenes: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"no longer finite|The loss of step"):
        train(make_config(scenes, tmp_path, lr_per_image=1e8, steps=4, print_interval=100))
    assert not (tmp_path / "weights" / "last.pt").exists()


def test_frozen_parts_do_not_move(scenes: Path, tmp_path: Path) -> None:
    start = tmp_path / "start"
    train(make_config(scenes, start, steps=1))
    ckpt = start / "weights" / "last.safetensors"
    train(make_config(scenes, tmp_path / "run", steps=3, ckpt=ckpt, freeze=("backbone",)))
    before, after = read_state(ckpt)[0], weights_of(tmp_path / "run")
    for key, value in before.items():
        moved = not torch.equal(value, after[key])
        assert not moved or key.startswith("head"), key
    assert not torch.equal(before["head.reg_preds.0.weight"], after["head.reg_preds.0.weight"])


def test_a_name_means_its_stored_weights(scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    config = make_config(scenes, tmp_path / "run", steps=1, ckpt=Path("yolox_nano"))
    with pytest.raises(CheckpointError, match="boxwright weights get yolox_nano"):
        train(config)
    (tmp_path / "yolox_nano.onnx").touch()
    with pytest.raises(CheckpointError, match="get yolox_nano --format pth"):
        train(config)
    train(make_config(scenes, tmp_path / "start", steps=1))
    (tmp_path / "start" / "weights" / "last.safetensors").rename(tmp_path / "yolox_nano.safetensors")
    assert train(config).steps == 1
    assert "yolox_nano.safetensors" in (tmp_path / "run" / "args.yaml").read_text()


def test_an_automatic_batch_fits_the_set_and_accumulation_gives_the_same_course(scenes: Path, tmp_path: Path) -> None:
    result = train(make_config(scenes, tmp_path / "auto", batch=0, steps=1))
    assert result.steps == 1
    assert train(make_config(scenes, tmp_path / "parts", accumulate=2, clip_norm=10.0, steps=2)).steps == 2


def test_the_world_of_a_single_run_is_untouched(scenes: Path, tmp_path: Path) -> None:
    before = dict(os.environ)
    train(make_config(scenes, tmp_path, steps=1))
    assert dict(os.environ) == before


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_full_device_has_room_for_a_batch_again_while_the_error_is_kept(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrapped: bool
) -> None:
    seen: list[weakref.ref[torch.Tensor]] = []

    def fill(outputs: Any, *args: Any, **settings: Any) -> Any:
        seen.append(weakref.ref(outputs[0]))
        raise torch.OutOfMemoryError("out of memory")

    def wrap(*args: Any, **settings: Any) -> Any:
        try:
            fill(*args, **settings)
        except RuntimeError as error:
            raise RuntimeError("a compiled part is out of memory") from error

    monkeypatch.setattr(CpuDevice, "is_out_of_memory", lambda self, error: "out of memory" in str(error))
    monkeypatch.setattr(loop, "yolox_loss", wrap if wrapped else fill)
    with pytest.raises(UsageError, match=r"4 at up to \(96, 96\)") as caught:
        train(make_config(scenes, tmp_path))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert len(seen) == 1
    assert seen[0]() is None
