"""python benchmarks/libraries.py --weights yolox_nano.pth --data SET --pictures IMAGES [--artifact FOLDER ...]

Boxwright, LibreYOLO and Ultralytics beside each other, by their public interfaces with their default settings: images
per second of training, and milliseconds from a picture's file to its boxes in PyTorch, ONNX Runtime and OpenVINO.
LibreYOLO has the same network, YOLOX-nano, with the same weights. Ultralytics has its own nano network with random
weights: it finds few boxes, which saves it time.

The others are installed beside this environment:

    pip install --no-deps --target .venv/peers -r benchmarks/peers/requirements.txt

--artifact names folders of `boxwright optimize`, timed as well. Each model is opened in a process of its own; they take
turns, and the median of the rounds counts. An epoch's time is the median without the first epoch.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import copyfile

from boxwright.core.cpu import read_cpu
from boxwright.core.timing import hardware_line
from boxwright.data.formats import read_records, write_records
from boxwright.data.records import Records

HERE = Path(__file__).resolve().parent
LIBRARIES = ("boxwright", "libreyolo", "ultralytics")
FORMS = ("onnx", "openvino")


class Peers:
    """Starts the jobs of `peers/detectors.py`."""

    def __init__(self, folder: Path, packages: Path) -> None:
        self._folder = folder
        # The others would look for updates, and for packages to install, on the network.
        self._env = os.environ | {
            "PYTHONPATH": str(packages.resolve()), "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false",
            "YOLO_CONFIG_DIR": str(folder / "config"), "PYTHONWARNINGS": "ignore",
        }  # fmt: skip

    def run(self, *words: object) -> object:
        """Run a job to its end and return what it prints."""
        done = subprocess.run(self._command(*words), cwd=self._folder, env=self._env, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, words))}:\n{done.stderr[-3000:]}")
        return json.loads(done.stdout.splitlines()[-1])

    def start(self, *words: object) -> "subprocess.Popen[str]":
        """Start a job that takes turns, and wait until it is ready."""
        with (self._folder / "log").open("a") as log:
            child = subprocess.Popen(
                self._command(*words), cwd=self._folder, env=self._env,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        if ask(child) != "ready":
            sys.exit(f"{' '.join(map(str, words))}:\n{(self._folder / 'log').read_text()[-3000:]}")
        return child

    def _command(self, *words: object) -> list[str]:
        return [sys.executable, str(HERE / "peers" / "detectors.py"), *map(str, words)]


def ask(child: "subprocess.Popen[str]") -> str:
    """Return a line of a child."""
    assert child.stdout is not None
    return child.stdout.readline().strip()


def write_set(records: Records, folder: Path) -> Path:
    """Write a set in the form that all three read, with all pictures in both parts."""
    write_records(records, folder, "yolo")
    names = json.dumps(list(records.names))
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: images/train\nval: images/train\nnames: {names}\n")
    return folder


def time_epochs(peers: Peers, networks: dict[str, str], records: Records, folder: Path, epochs: int) -> None:
    """Print the images per second of a training with each library."""
    data = write_set(records, folder / "set")
    for name, network in networks.items():
        for precision in ("32", "bf16") if name == "boxwright" else ("32",):
            seconds = peers.run(name, "train", network, data, epochs, precision)
            assert isinstance(seconds, list)
            epoch_s = statistics.median(seconds[1:])
            rate = len(records) / epoch_s
            print(f"train, {name} {precision}: {rate:.1f} images/s ({epoch_s:.1f} s per epoch)", flush=True)


def time_pictures(peers: Peers, models: dict[str, tuple[str, str]], pictures: Path, rounds: int) -> None:
    """Print the time from a file to boxes with each model; `models` holds library and model by name."""
    children = {name: peers.start(library, "predict", model, pictures) for name, (library, model) in models.items()}
    times: dict[str, list[float]] = {name: [] for name in children}
    boxes: dict[str, int] = {}
    names = list(children)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            child = children[name]
            assert child.stdin is not None
            print("go", file=child.stdin, flush=True)
            answer = json.loads(ask(child))
            times[name].append(answer["ms"])
            boxes[name] = answer["boxes"]
    for name, child in children.items():
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
        print(f"{name}: {statistics.median(times[name]):.1f} ms a picture, {boxes[name]} boxes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, help="the official yolox_nano.pth")
    parser.add_argument("--data", type=Path, help="a labelled set to train on (default: no training)")
    parser.add_argument("--pictures", type=Path, help="a folder of images to predict (default: no prediction)")
    parser.add_argument("--count", type=int, default=16, help="use this many pictures")
    parser.add_argument("--artifact", type=Path, nargs="*", default=[])
    parser.add_argument("--ultralytics", default="yolo26n", help="its network")
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--peers", type=Path, default=HERE.parent / ".venv" / "peers")
    args = parser.parse_args()
    weights = str(args.weights.resolve())
    networks = {name: args.ultralytics if name == "ultralytics" else weights for name in args.libraries}
    print(f"{hardware_line()}, {read_cpu().usable_cores} cores", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        peers = Peers(folder, args.peers)
        if args.data is not None:
            time_epochs(peers, networks, read_records(args.data), folder, args.epochs)
        if args.pictures is not None:
            pictures = folder / "pictures"
            pictures.mkdir()
            for path in sorted(args.pictures.iterdir())[: args.count]:
                copyfile(path, pictures / path.name)
            models = {f"{name}, PyTorch": (name, network) for name, network in networks.items()}
            for name, network in networks.items():
                for form in FORMS:
                    models[f"{name}, {form}"] = (name, str(peers.run(name, "export", network, form, folder)))
            for artifact in args.artifact:
                models[f"boxwright, {artifact.name}"] = ("boxwright", str(artifact.resolve()))
            time_pictures(peers, models, pictures, args.rounds)


if __name__ == "__main__":
    main()
