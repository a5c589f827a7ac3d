"""The files of a model, sent to workers that may not see this machine's disk."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from boxwright.runtimes.base import Tuning
from boxwright.tasks.models import ModelOptions, find_model, open_model
from boxwright.tasks.predict.predictor import Predictor, Thresholds
from boxwright.tasks.predict.selfcheck import choose_artifact


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The files of one model.

    Attributes:
        name: of the file or folder.
        files: path below the folder (or the file's name) and content.
    """

    name: str
    files: tuple[tuple[str, bytes], ...] = field(repr=False)

    @classmethod
    def read(cls, model: str | Path) -> "ModelFiles":
        """Return the files of a model.

        Raises:
            CheckpointError: there is no such model.
        """
        path = find_model(model)
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.is_file())
            return cls(name=path.resolve().name, files=tuple((str(p.relative_to(path)), p.read_bytes()) for p in found))
        beside = [path, path.with_name(f"{path.name}.data")]  # where ONNX keeps the weights of large models
        return cls(name=path.name, files=tuple((p.name, p.read_bytes()) for p in beside if p.is_file()))

    @property
    def digest(self) -> str:
        """A fingerprint of the content."""
        total = hashlib.sha256()
        for name, data in self.files:
            total.update(f"{name}\0{len(data)}\0".encode())
            total.update(data)
        return total.hexdigest()

    @property
    def takes_threads(self) -> bool:
        """Whether the model's runtime has a setting for the number of threads."""
        return self.is_artifact or self.name.lower().endswith(".onnx")

    @property
    def is_artifact(self) -> bool:
        """Whether it is an artifact folder, not a file."""
        return any(name == "artifact.json" for name, _ in self.files)

    def open(self, options: ModelOptions, thresholds: Thresholds, threads: int | None) -> Predictor:
        """Return a predictor of the model.

        An artifact must pass its check on this machine: a worker that fell back on another one would not give the same
        results as the others.

        Raises:
            CheckpointError: the files can't be used here.
            UsageError: an option does not apply to the model.
        """
        # The folder can go once the model is loaded: files that are mapped into memory stay there.
        with TemporaryDirectory(prefix="boxwright-model-") as folder:
            path = Path(folder) / self.name
            root = path if self.is_artifact else path.parent
            for name, data in self.files:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(data)
            model = choose_artifact(path, on_mismatch="refuse") if self.is_artifact else path
            tuning = Tuning(threads=threads) if self.takes_threads else None
            return Predictor(open_model(model, options, tuning), thresholds)
