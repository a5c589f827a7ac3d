"""What the folders hold: labelled sets, runs and reports, and what is read of them."""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread

from yaml import YAMLError

from boxwright.core.errors import BoxwrightError
from boxwright.core.files import read_bytes
from boxwright.core.log import get_logger
from boxwright.core.yaml_file import parse
from boxwright.data.check import check_records
from boxwright.data.check.report import CheckReport
from boxwright.data.dataset import DetectionDataset
from boxwright.data.formats import Layout, find_layout
from boxwright.data.policy import policy_for
from boxwright.data.records import Records
from boxwright.detector.sizes import SIZES

_log = get_logger(__name__)
_DEEPEST = 6
_PAGES = ("report.html", "compare.html")
_MOST_SETTINGS = 1_000_000  # bytes
_MODEL = "yolox_nano"
_LIVE_S = 120.0
"""A run without a result whose metrics are older than this is not running."""


@dataclass(kw_only=True)
class LabelledSet:
    """A part of a labelled set; its records and the linter's findings are read when they are first needed."""

    name: str
    folder: Path
    split: str | None
    layout: Layout
    report: CheckReport | None = None
    checked: tuple[int, int] = (0, 0)
    _records: Records | None = None
    _lock: Lock = field(default_factory=Lock)
    _checking: Thread | None = None
    _reading: Thread | None = None
    _dataset: DetectionDataset | None = None

    def prepare(self, wait_s: float) -> bool:
        """Read the labels in a thread of their own, and return whether that has ended within this time."""
        if self._reading is None:
            self._reading = Thread(target=self._read, daemon=True)
            self._reading.start()
        self._reading.join(wait_s)
        return not self._reading.is_alive()

    def _read(self) -> None:
        with suppress(BoxwrightError):  # `records` raises it again, to the request that needs them
            len(self.records)

    @property
    def dataset(self) -> DetectionDataset:
        """The samples that a training of YOLOX-nano on this set would see."""
        records = self.records
        with self._lock:
            if self._dataset is None:
                size_hw = SIZES[_MODEL].input_hw
                self._dataset = DetectionDataset(records, size_hw, policy=policy_for(_MODEL))
            return self._dataset

    @property
    def records(self) -> Records:
        """The labels.

        Raises:
            DataError: they can't be read.
        """
        with self._lock:
            if self._records is None:
                self._records = self.layout.read(self.split)
            return self._records

    def check(self) -> None:
        """Start the linter, once, in a thread of its own."""
        with self._lock:
            if self._checking is not None:
                return
            self._checking = Thread(target=self._check, daemon=True)
        self._checking.start()

    @property
    def checking(self) -> bool:
        """Whether the linter is at work."""
        return self._checking is not None and self._checking.is_alive()

    def _check(self) -> None:
        def note(done: int, total: int) -> None:
            self.checked = (done, total)

        try:
            self.report = check_records(self.records, progress=note)
        except BoxwrightError as error:
            _log.warning("%s can't be checked: %s", self.name, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The folder of a training."""

    name: str
    folder: Path

    @property
    def key(self) -> str:
        """What addresses it: its place among the runs changes whenever one of them writes."""
        return _key(self.folder)

    def settings(self) -> dict[str, str]:
        """Return the settings of `args.yaml` as text; none if it can't be read."""
        try:
            values = parse(read_bytes(self.folder / "args.yaml", max_bytes=_MOST_SETTINGS).decode())
        except (OSError, ValueError, YAMLError):
            return {}
        return {str(name): str(value) for name, value in values.items()} if isinstance(values, dict) else {}

    @property
    def live(self) -> bool:
        """Whether it is being trained, as far as its files say."""
        age_s = time.time() - (self.folder / "metrics.jsonl").stat().st_mtime
        return not (self.folder / "result.json").exists() and age_s < _LIVE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page that `eval --report`, `compare`, `optimize` or `train` wrote, and one line about it."""

    kind: str
    name: str
    path: Path
    said: str

    @property
    def key(self) -> str:
        """What addresses it."""
        return _key(self.path)


def _key(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]


def find_sets(folders: Sequence[Path]) -> list[LabelledSet]:
    """Return the parts of the labelled sets that the folders are, or hold directly."""
    found: list[LabelledSet] = []
    for folder in folders:
        children = sorted(child for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []
        own = _parts(folder)
        found += own or [part for child in children for part in _parts(child)]
    return found


def find_runs(folders: Sequence[Path]) -> list[Run]:
    """Return the runs below the folders, the newest first."""
    runs = [Run(name=str(path.parent), folder=path.parent) for path in _walk(folders, ("metrics.jsonl",))]
    return sorted(runs, key=lambda run: -(run.folder / "metrics.jsonl").stat().st_mtime)


def find_pages(folders: Sequence[Path]) -> list[Page]:
    """Return the pages below the folders, the newest first."""
    paths = sorted(_walk(folders, _PAGES), key=lambda path: -path.stat().st_mtime)
    return [_describe(path) for path in paths]


def _parts(folder: Path) -> list[LabelledSet]:
    if any((folder / page).exists() for page in _PAGES):  # the json beside it holds no labels
        return []
    try:
        layout = find_layout(folder)
    except (BoxwrightError, OSError):
        return []
    splits: list[str | None] = [part for part in layout.splits if part != "trainval"]
    return [
        LabelledSet(name=f"{folder}" + (f" ({split})" if split else ""), folder=folder, split=split, layout=layout)
        for split in splits or [None]
    ]


def _walk(folders: Sequence[Path], names: tuple[str, ...]) -> Iterator[Path]:
    seen: set[Path] = set()
    for top in folders:
        for where, below, files in os.walk(top):
            folder = Path(where)
            if len(folder.parts) - len(top.parts) >= _DEEPEST:
                below.clear()
            below[:] = sorted(name for name in below if not name.startswith("."))
            for name in names:
                path = (folder / name).resolve()
                if name in files and path not in seen:
                    seen.add(path)
                    yield folder / name


def _describe(path: Path) -> Page:
    if path.name == "compare.html":
        values = _read_json(path.with_suffix(".json"))
        change = values.get("AP_change")
        said = f"AP {change['value']:+.4f}" if isinstance(change, dict) and "value" in change else ""
        return Page(kind="comparison", name=str(path.parent), path=path, said=said)
    if (path.parent / "metrics.jsonl").exists():
        return Page(kind="training", name=str(path.parent), path=path, said="")
    values = _read_json(path.with_suffix(".json"))
    if "errors" in values:
        ap = values.get("AP")
        said = f"AP {ap:.4f}" if isinstance(ap, float) else ""
        return Page(kind="evaluation", name=str(path.parent), path=path, said=said)
    return Page(kind="optimisation", name=str(path.parent), path=path, said="")


def _read_json(path: Path) -> dict[str, object]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
