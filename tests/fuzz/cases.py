"""One input: a kind, its files in the sandbox, and the command or call that reads them."""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from fuzz.commands import Options, make_command
from fuzz.models import spoil_model
from fuzz.pictures import spoil_picture
from fuzz.sandbox import Sandbox
from fuzz.sets import FILES, FORMATS, SHARDED, put_something_else, spoil_set

MODEL = "../in/toy.onnx"
_KINDS = {"model": 26, "artifact": 10, "set": 30, "picture": 14, "video": 6, "command": 8, "call": 6}
_WHOLE = ("coco", *SHARDED)  # sets that are not split
_REAL = 0.04  # run as a separate program, not forked
_GOOD = 0.02  # not mutated at all


@dataclass
class Case:
    """What to run.

    Attributes:
        name: the seed and the number of this input.
        kind: what was spoilt.
        argv: the words of the command; empty for a call.
        good: nothing was spoilt.
        real: start the program itself.
    """

    name: str
    kind: str
    argv: list[str]
    good: bool = False
    real: bool = False

    def save(self, path: Path, findings: list[str]) -> None:
        """Write it with what was found."""
        path.write_text(json.dumps({"case": asdict(self), "findings": findings}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Case":
        """Return the case that `save` wrote."""
        return cls(**json.loads(path.read_text())["case"])


class Maker:
    """Makes the inputs of a run."""

    def __init__(self, seeds: Path, kinds: list[str]) -> None:
        self.seeds = seeds
        self._kinds = [kind for kind in _KINDS if not kinds or kind in kinds]
        self._options: Options = json.loads((seeds / "options.json").read_text())
        models = sorted((seeds / "models").iterdir())
        self._files = [path for path in models if path.is_file()]
        self._artifacts = [path for path in models if path.is_dir()]

    def make(self, seed: int, number: int, box: Sandbox) -> Case:
        """Write the files of one input into the sandbox and return what to run."""
        name = f"{seed}:{number}"
        rng = Random(name)
        kind = rng.choices(self._kinds, [_KINDS[kind] for kind in self._kinds])[0]
        case = Case(
            name, kind, [], good=rng.random() < _GOOD and kind not in ("command", "call"), real=rng.random() < _REAL
        )
        if kind == "call":
            case.real = False
            self._copy_all(box)
            return case
        if kind in ("model", "artifact"):
            case.argv = self._make_model(
                rng, box, rng.choice(self._files if kind == "model" else self._artifacts), case.good
            )
        elif kind == "set":
            case.argv = self._make_set(rng, box, case.good)
        elif kind == "command":
            case.argv = self._make_words(rng, box)
            case.real &= not any("\0" in word for word in case.argv)
        else:
            folder = self.seeds / ("videos" if kind == "video" else "pictures")
            case.argv = self._make_picture(rng, box, sorted(folder.iterdir()), case.good)
        return case

    def _copy_all(self, box: Sandbox) -> None:
        for folder in ("models", "sets", "pictures", "videos"):
            shutil.copytree(self.seeds / folder, box.inputs / folder)

    def _copy_toy(self, box: Sandbox) -> None:
        shutil.copy(self.seeds / "models" / "toy.onnx", box.inputs)

    def _make_model(self, rng: Random, box: Sandbox, seed: Path, good: bool) -> list[str]:
        target = box.inputs / (seed.name if seed.is_dir() else f"model{seed.suffix}")
        if not good:
            spoil_model(rng, seed, target, box.outside)
        elif seed.is_dir():
            shutil.copytree(seed, target)
        else:
            shutil.copy(seed, target)
        model = f"../in/{target.name}"
        size = ["--size", "64"] if seed.suffix == ".pth" or seed.stem == "foreign" else []
        trust = ["--trust"] if good and seed.name == "jit" else []  # the sandbox's user has not made it
        shutil.copy(self.seeds / "pictures" / "scene.jpg", box.inputs)
        verb = rng.randrange(20)
        if verb < 6:
            return ["info", model, *size, *_maybe(rng, "--json")]
        if verb < 17:
            save = ["--save", *rng.sample(("json", "csv", "coco", "yolo", "images"), rng.choice((0, 1, 2)))]
            out = ["--out", "../out/p"] if len(save) > 1 else []
            return [
                "predict",
                model,
                "../in/scene.jpg",
                *size,
                *trust,
                *save,
                *out,
                *_maybe(rng, "--json"),
                *_maybe(rng, "--conf", "0"),
            ]
        if verb < 19:
            shutil.copytree(self.seeds / "sets" / "coco", box.inputs / "coco")
            size += ["--names", "circle,square,star"] if good and seed.suffix else []
            return ["eval", model, "--data", "../in/coco", *size, *trust, *_maybe(rng, "--json")]
        return ["benchmark", model, "--runs", "2", "--timeout", "60", *trust]

    def _make_set(self, rng: Random, box: Sandbox, good: bool) -> list[str]:
        form = rng.choice(FORMATS)
        target = box.inputs / form
        if good:
            shutil.copytree(self.seeds / "sets" / form, target)
        else:
            spoil_set(rng, self.seeds / "sets" / form, target, box.outside)
        place, verb = f"../in/{form}", rng.randrange(20)
        if verb < 6:
            return ["data", "check", place, *_maybe(rng, "--json"), *_maybe(rng, "--report", "../out/report.json")]
        if verb < 9:
            return ["data", "stats", place, *_maybe(rng, "--json")]
        if verb < 13:
            to = rng.choice(FORMATS)
            link = _maybe(rng, "--link") if not good or to not in SHARDED else []  # shards hold the images themselves
            return ["data", "convert", place, "../out/set", "--to", to, *link]
        if verb < 14 and (form == "coco" or (form in SHARDED and not good)):  # shards name their split
            return ["data", "split", place, "../out/set", "--to", rng.choice(FILES if good else FORMATS)]
        if verb < 16:
            return ["data", "preview", place, "--out", "../out/p", "-b", "2", "--size", "64"]
        if verb < 19 and not good:  # the toy model and the set have different classes
            self._copy_toy(box)
            return ["eval", MODEL, "--data", place, *_maybe(rng, "--json")]
        words = ["--out", "../out/run", "--size", "64", "-b", "2", "steps=1", "workers=1", "multiscale=false"]
        split = ["--val", "0.25"] if form in _WHOLE else []
        return ["train", "--data", place, *words, *split]

    def _make_picture(self, rng: Random, box: Sandbox, files: list[Path], good: bool) -> list[str]:
        self._copy_toy(box)
        folder = box.inputs / "files"
        folder.mkdir()
        chosen = rng.sample(files, min(len(files), rng.choice((1, 1, 2))))
        for seed in chosen:
            target = folder / seed.name
            shutil.copy(seed, target)
            if not good:
                if rng.random() < 0.12:
                    put_something_else(rng, target)
                else:
                    target.write_bytes(spoil_picture(rng, seed))
                if rng.random() < 0.1 and target.is_file():
                    target.rename(
                        folder
                        / f"{target.stem}{rng.choice(('.jpg', '.png', '.mp4', '.avi', '.tif', '.gif', '.JPG', ''))}"
                    )
        if not good and rng.random() < 0.1:
            shutil.copy(
                files[0],
                folder
                / rng.choice(
                    ("\x1b[2Jx.jpg", "=a.jpg", "é🎉.jpg", "a b.jpg", "[red]x.jpg", "-x.jpg", "%s.png", "a\nb.jpg")
                ),
            )
        sources = (
            ["../in/files"]
            if rng.random() < 0.5
            else [f"../in/files/{path.name}" for path in folder.iterdir()] or ["../in/files"]
        )
        if rng.random() < 0.08:
            return ["predict", MODEL, "../in/files", "--engine", "local", "--workers", "1", "--out", "../out/b"]
        save = ["--save", *rng.sample(("json", "csv", "coco", "yolo", "images"), rng.choice((0, 1, 1, 3)))]
        out = ["--out", "../out/p"] if len(save) > 1 else []
        return ["predict", MODEL, *sources, *save, *out, *_maybe(rng, "--json"), *_maybe(rng, "--batch", "2")]

    def _make_words(self, rng: Random, box: Sandbox) -> list[str]:
        self._copy_all(box)
        models = [f"../in/models/{path.name}" for path in self._files + self._artifacts]
        sets = [f"../in/sets/{name}" for name in FORMATS]
        return make_command(
            rng, self._options, models, sets, ["../in/pictures/scene.png", "../in/pictures", "../in/videos/scene.mp4"]
        )


def _maybe(rng: Random, *words: str) -> list[str]:
    return list(words) if rng.random() < 0.25 else []
