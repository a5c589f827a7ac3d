"""The commands that users of YOLOX on Gaudi have in their scripts: all of them parse, and run for a few steps."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.clusters import further
from support.hpu.process import run_on_hpu

from boxwright.cli import build_parser, main
from boxwright.core.config import load_config
from boxwright.data.synthetic import generate_scenes
from boxwright.tasks.train.run import TrainConfig

ONE = "--name yolox-s --batch-size 8 --data_dir /data/COCO --use_hpu"
EIGHT = "--name yolox-s --devices 8 --batch-size 64 --data_dir /data/COCO --use_hpu"
LISTS = "--hmp --hmp-opt-level O1 --hmp-fp32 ./ops_fp32_yolox.txt --hmp-bf16 ./ops_bf16_yolox.txt"
COMMANDS = {
    "one card, fp32": f"{ONE} steps 500 output_dir ./yolox_output",
    "one card, bf16": f"{ONE} {LISTS} steps 500 output_dir ./yolox_output",
    "eight cards, fp32": f"{EIGHT} max_epoch 2 output_dir ./yolox_output",
    "eight cards, bf16": f"{EIGHT} {LISTS} max_epoch 2 output_dir ./yolox_output",
    "eight cards, bf16, whole course": f"{EIGHT} {LISTS} print_interval 100 max_epoch 300 save_history_ckpt False "
    "eval_interval 300 output_dir ./yolox_output",
}
EXPECTED: dict[str, dict[str, Any]] = {
    "one card, fp32": {"batch": 8, "steps": 500, "num_processes": 1, "precision": "32"},
    "one card, bf16": {"batch": 8, "steps": 500, "num_processes": 1, "precision": "bf16"},
    "eight cards, fp32": {"batch": 64, "max_epoch": 2, "num_processes": 8, "precision": "32"},
    "eight cards, bf16": {"batch": 64, "max_epoch": 2, "num_processes": 8, "precision": "bf16"},
    "eight cards, bf16, whole course": {
        "batch": 64, "max_epoch": 300, "num_processes": 8, "precision": "bf16", "print_interval": 100,
        "save_history_ckpt": False, "eval_interval": 300,
    },
}  # fmt: skip


Meaning = Callable[[str], TrainConfig]


@pytest.fixture
def meaning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Meaning:
    """Return the settings that a command stands for, in a folder of its own, instead of training."""

    class Stop(BaseException):  # passes the border that turns every exception into an exit code
        pass

    def read(command: str) -> TrainConfig:
        configs: list[TrainConfig] = []

        def catch(*arguments: Any) -> TrainConfig:
            configs.append(load_config(*arguments))
            raise Stop

        monkeypatch.setattr("boxwright.core.config.load_config", catch)
        with pytest.raises(Stop):
            main(["train", *shlex.split(command)])
        return configs[0]

    monkeypatch.chdir(tmp_path)
    return read


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_means_what_its_user_meant(name: str, meaning: Meaning) -> None:
    config = meaning(COMMANDS[name])
    assert (config.model, config.device, config.lazy) == ("yolox_s", "hpu", None)
    assert (Path(config.data), config.output_dir) == (Path("/data/COCO"), Path("yolox_output"))
    for key, value in EXPECTED[name].items():
        assert getattr(config, key) == value, key
    lists = (config.bf16_ops, config.fp32_ops)
    assert lists == ((Path("ops_bf16_yolox.txt"), Path("ops_fp32_yolox.txt")) if "bf16" in name else (None, None))


@pytest.mark.parametrize(
    ("words", "file", "cards"),
    [
        ("--use_hpu", "seed: 3", 1),
        ("--use_hpu num_processes 2", "seed: 3", 2),
        ("--use_hpu num_processes 0", "seed: 3", 0),  # all of them
        ("--use_hpu num-processes=2", "num-processes: 4", 2),
        ("--use_hpu --devices 2", "num_processes: 4", 2),
        ("--use_hpu", "num_processes: 4", 4),
        ("--use_hpu", "num-processes: 4", 4),
        ("--use_hpu", "{num_processes: 0, device: hpu}", 0),
        ("--use_hpu", "{num_processes: 0, device: cpu}", 1),
    ],
)
@pytest.mark.parametrize("way", ["--config run/args.yaml", "--resume --out run"])
def test_one_card_is_the_default_where_nobody_names_a_number(
    words: str, file: str, cards: int, way: str, meaning: Meaning, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "args.yaml").write_text(file)
    config = meaning(f"--name yolox-s --data set {'' if 'out' in way else '--out new'} {way} {words}")
    assert (config.device, config.num_processes) == ("hpu", cards)


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ("--hmp --precision bf16-mixed", "bf16-mixed"),
        ("--hmp precision bf16", "bf16"),
        ("--hmp --config old.yaml", "bf16"),
        ("--hmp-bf16 x.txt precision=bf16", "bf16"),
        ("--hmp-bf16 x.txt --precision bfloat16", "bfloat16"),
        ("--precision bf16 --hmp-opt-level O1", "bf16"),
    ],
)
def test_flags_that_agree_are_taken(words: str, precision: str, meaning: Meaning, tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("precision: 32-true\n")
    assert meaning(f"{ONE} --out new {words}").precision == precision


def test_flags_of_the_original_scripts_mean_settings(meaning: Meaning) -> None:
    config = meaning(f"{ONE} --freeze --noresize steps 500 output_dir out")
    assert (config.freeze, config.multiscale, config.steps) == (("backbone",), False, 500)


def test_no_card_at_all_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--data", "set", "--use_hpu", "--devices", "0"])
    assert "'0' must be a whole number of at least 1" in capsys.readouterr().err


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    generate_scenes(folder, images=20, seed=0, size_hw=(64, 64), classes=("circle", "square"))
    return folder


# The others differ in the number of steps and cards, or in the precision, and not in the way they take.
TELLING = ("one card, bf16", "eight cards, fp32")


@pytest.mark.parametrize("name", [*TELLING, *further(*(name for name in COMMANDS if name not in TELLING))])
def test_the_command_runs_on_the_simulated_card(name: str, scenes: Path, tmp_path: Path) -> None:
    (tmp_path / "ops_bf16_yolox.txt").write_text("conv2d\n")
    (tmp_path / "ops_fp32_yolox.txt").write_text("batch_norm\n")
    words = shlex.split(COMMANDS[name].replace("/data/COCO", str(scenes)))
    # A small network, two cards for eight and two steps for hundreds; the rest is the user's.
    words = [{"yolox-s": "yolox-nano", "64": "8", "500": "2"}.get(word, word) for word in words]
    if "--devices" in words:
        words[words.index("--devices") + 1] = "2"
        words += ["compile=false"]  # each process would compile for itself
    if "max_epoch" in words:
        at = words.index("max_epoch")
        words[at : at + 2] = ["steps", "2"]
    finished = run_on_hpu("-m", "boxwright", "train", *words, "--size", "64", "--val", "0.2", folder=tmp_path)
    assert finished.code == 0, finished.err
    assert (tmp_path / "yolox_output" / "weights" / "last.safetensors").is_file()
    assert [worker["optimizer_steps"] for worker in finished.workers] == [2] * (2 if "eight" in name else 1)
    told = "it means --precision bf16" in finished.err
    assert told == ("bf16" in name)
    for worker in finished.workers:
        lists = worker["variables"].get("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST")
        assert lists == (str(tmp_path / "ops_bf16_yolox.txt") if "bf16" in name else None)
    kept = load_config(TrainConfig, tmp_path / "yolox_output" / "args.yaml")  # to go on with from any folder
    assert kept.fp32_ops == (tmp_path / "ops_fp32_yolox.txt" if "bf16" in name else None)


@pytest.fixture
def autoloading(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `import torch` load the plugin, as the real one's entry point does."""
    folder = tmp_path_factory.mktemp("autoload")
    (folder / "autoloading_hpu.py").write_text("def load():\n    import habana_frameworks.torch\n")
    (folder / "autoloading_hpu-1.0.dist-info").mkdir()
    (folder / "autoloading_hpu-1.0.dist-info" / "METADATA").write_text("Name: autoloading_hpu\nVersion: 1.0\n")
    entry = "[torch.backends]\nsimulated_hpu = autoloading_hpu:load\n"
    (folder / "autoloading_hpu-1.0.dist-info" / "entry_points.txt").write_text(entry)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.usefixtures("autoloading")
def test_a_plugin_that_torch_loads_knows_the_settings_and_those_of_a_run_that_goes_on(tmp_path: Path) -> None:
    (tmp_path / "ops.txt").write_text("conv2d\n")
    (tmp_path / "run").mkdir()
    settings = "model: yolox_nano\ndata: scenes\noutput_dir: run\ndevice: hpu\nlazy: true\n"
    (tmp_path / "run" / "args.yaml").write_text(settings)
    words = ("train", "--resume", "--out", "run", "precision", "bf16", "bf16_ops=ops.txt")
    finished = run_on_hpu("-m", "boxwright", *words, folder=tmp_path)
    assert "CheckpointError" in finished.err, "the run ends after its device is there: it has no checkpoint"
    (seen,) = finished.records
    assert seen["lazy"]
    assert seen["variables"]["PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST"] == str(tmp_path / "ops.txt")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--use_hpu --device cuda", "contradict each other"),
        ("--use_hpu --hmp --hmp-opt-level O2", "of the old levels only O1"),
        ("--use_hpu --hmp-opt-level O1", "is a level of bf16"),
        ("--use_hpu --hmp --precision 32", "--hmp means bf16"),
        ("--use_hpu --autocast precision=bf16-true", "--autocast means bf16"),
        ("--use_hpu --freeze backbone steps 5", "--freeze takes no value"),
        ("--use_hpu --freeze freeze=[head]", "--freeze means freeze=[backbone]"),
        ("--use_hpu --noresize multiscale true", "--noresize means multiscale=False"),
        ("--use_hpu --warmup-steps 2 steps 5", "leaves out the first steps by itself"),
        ("--use_hpu", "needs habana_frameworks"),
        ("--use_lazy_mode", "lazy=True does not apply to device='cpu'"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(
    words: str, message: str, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--data", str(scenes), "--out", str(tmp_path / "run"), *shlex.split(words)]) in (1, 2)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "others", "value"),
    [
        ("--batch", ["--batch-size", "--batch_size"], ["4"]),
        ("--data", ["--data_dir", "--data-dir"], ["set"]),
        ("--num_processes", ["--num-processes", "--devices"], ["2"]),
        ("--use_ipex", ["--use-ipex"], []),
        ("--use_hpu", ["--use-hpu", "--hpu"], []),
        ("--use_lazy_mode", ["--use-lazy-mode"], []),
        ("--hmp-opt-level", ["--hmp_opt_level"], ["O1"]),
        ("--hmp-bf16", ["--hmp_bf16", "--bf16-ops"], ["ops.txt"]),
        ("--hmp-fp32", ["--hmp_fp32", "--fp32-ops"], ["ops.txt"]),
        ("--warmup-steps", ["--warmup_steps"], ["2"]),
    ],
)
def test_every_spelling_of_a_flag_is_known(flag: str, others: list[str], value: list[str]) -> None:
    parser = build_parser()
    for other in others:
        assert parser.parse_args(["train", other, *value]) == parser.parse_args(["train", flag, *value])
