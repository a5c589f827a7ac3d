"""What `boxwright tune` searches: settings of a training run, and their spaces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boxwright.core.config import load_config, read_settings, to_dict
from boxwright.core.errors import UsageError, check_choice
from boxwright.core.files import write_whole
from boxwright.core.spaces import Bool, Categorical, Real, Space, parse_space, space_text
from boxwright.core.yaml_file import dump
from boxwright.tasks.train.config import TrainConfig

SETTINGS = "tune.yaml"
"""The file of a search's folder that `load_search` reads."""
LEARNING_RATE = "lr"
"""The learning rate of a whole batch; `lr_per_image` is this divided by the batch."""

TUNABLE = (
    LEARNING_RATE, "lr_per_image", "batch", "accumulate", "lowest_lr", "warmup_epochs", "no_aug_epochs", "momentum",
    "weight_decay", "clip_norm", "ema", "augment", "mosaic", "multiscale", "class_weights", "precision", "model",
)  # fmt: skip
"""Settings that may differ between trials: all see the same data equally often, and are scored on the same images."""

DEFAULT_SPACES: Mapping[str, Space] = {
    "lr_per_image": Real(5e-5, 5e-3, log=True),
    "momentum": Real(0.8, 0.98),
    "weight_decay": Real(1e-5, 1e-2, log=True),
    "mosaic": Bool(),
    "class_weights": Categorical("off", "balanced"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneConfig:
    """One search.

    Attributes:
        train: the run that every trial changes; its `output_dir` is the search's folder.
        spaces: the values of each setting to search.
        trials: how many, with the defaults.
        repeats: with how many new seeds the best trial is compared with the defaults.
        resume: continue the search in the folder.
        engine: where the trials run: "local" or "ray", one after another. With Ray all machines share the folder.
        address: of the Ray cluster; None for the one in RAY_ADDRESS, or a new one.
    """

    train: TrainConfig
    spaces: Mapping[str, Space]
    trials: int = 20
    repeats: int = 3
    resume: bool = False
    engine: str = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, ("local", "ray"))
        if self.address is not None and self.engine != "ray":
            raise UsageError(f"address={self.address!r} is for engine 'ray'. Add --engine ray, or leave it out.")
        if self.trials < 2:
            raise UsageError(f"trials={self.trials!r} must be at least 2: the first one is the defaults.")
        for name, space in self.spaces.items():
            check_choice("setting to tune", name, TUNABLE)
            for value in space.corners():
                with_settings(self.train, {name: value})  # an error now, not in the tenth trial
        if LEARNING_RATE in self.spaces and "lr_per_image" in self.spaces:
            raise UsageError("lr and lr_per_image set the same learning rate. Give one of them a space.")
        if self.train.patience:
            raise UsageError("patience ends runs early, as Hyperband does. Leave it out.")

    def defaults(self) -> dict[str, Any]:
        """Return the value of each searched setting in the run without a search."""
        rate = self.train.lr_per_image
        whole = {LEARNING_RATE: None if rate is None else rate * self.train.batch}
        return {name: whole[name] if name in whole else getattr(self.train, name) for name in self.spaces}


def with_settings(train: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """Return the run with other settings.

    Raises:
        UsageError: a value does not fit.
    """
    values = dict(settings)
    if LEARNING_RATE in values:
        batch = values.get("batch", train.batch)
        if not batch:
            raise UsageError("lr is for a whole batch, whose size --batch auto leaves open. Tune lr_per_image.")
        values["lr_per_image"] = values.pop(LEARNING_RATE) / batch
    return load_config(TrainConfig, None, (), {**to_dict(train), **values})


def read_spaces(words: Sequence[str]) -> dict[str, Space]:
    """Return the spaces that words such as `lr=real:1e-4..1e-2` and YAML files of such pairs describe.

    Raises:
        UsageError: a word is neither, or a setting is given twice.
    """
    spaces: dict[str, Space] = {}
    for word in words:
        name, equals, text = word.partition("=")
        for key, value in make_spaces({name: text} if equals else read_settings(Path(word))).items():
            if key in spaces:
                raise UsageError(f"Setting {key!r} has two spaces. Keep one.")
            spaces[key] = value
    return spaces


def make_spaces(texts: Mapping[str, Any]) -> dict[str, Space]:
    """Return the spaces of texts, or of lists of choices.

    Raises:
        UsageError: one describes no space.
    """
    return {
        name.replace("-", "_"): Categorical(*text) if isinstance(text, list) else parse_space(str(text))
        for name, text in texts.items()
    }


def save_config(config: TuneConfig, path: Path) -> None:
    """Write the search to a file, for `load_search`."""
    texts = {name: space_text(space) for name, space in config.spaces.items()}
    values = {"trials": config.trials, "repeats": config.repeats, "spaces": texts, "train": to_dict(config.train)}
    write_whole(path, dump(values))


def load_search(path: Path, trials: int | None = None) -> TuneConfig:
    """Return the search of a file, to resume it; `trials` may be another number.

    Raises:
        UsageError: the file can't be read, or a value does not fit.
    """
    values = read_settings(path)
    if not isinstance(values.get("train"), dict) or not isinstance(values.get("spaces"), dict):
        raise UsageError(f"{str(path)!r} is not the file of a search: it has no settings or no spaces.")
    return TuneConfig(
        train=load_config(TrainConfig, None, (), {**values["train"], "output_dir": str(path.parent)}),
        spaces=make_spaces(values["spaces"]),
        trials=trials or int(values["trials"]),
        repeats=int(values["repeats"]),
        resume=True,
    )
