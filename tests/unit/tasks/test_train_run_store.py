"""A store: what is copied there and back, and what is there when a copy is torn."""

from pathlib import Path

import fsspec
import pytest

from boxwright.accel import places
from boxwright.core.errors import CheckpointError
from boxwright.tasks.train.run_store import LAST, PREVIOUS, RunStore


@pytest.fixture(params=["path", "file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"path": f"{tmp_path}/far", "file": f"file://{tmp_path}/far", "memory": f"memory://{tmp_path.name}/far"}[
        request.param
    ]


def make_run(folder: Path, text: str) -> Path:
    for name in (
        "args.yaml",
        "metrics.jsonl",
        "weights/last.pt",
        "weights/last.previous.pt",
        "weights/best.safetensors",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text} {name}")
    for name in (".lock", "cache/decoded", "weights/.last.pt.1.tmp"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("of this machine only")
    return folder


def listed(place: str) -> list[str]:
    system, path = fsspec.core.url_to_fs(place)
    return sorted(name[len(path) + 1 :] for name in system.find(path))


def test_a_run_comes_back_on_another_machine(tmp_path: Path, place: str):
    here, there = make_run(tmp_path / "here", "1"), tmp_path / "there"
    store = RunStore(place, here)
    assert not store.has_run()
    store.push()
    assert store.has_run()
    assert listed(place) == ["args.yaml", "metrics.jsonl", "weights/best.safetensors", "weights/last.pt"]

    other = RunStore(place, there)
    other.pull()
    assert (there / "weights" / "last.pt").read_text() == "1 weights/last.pt"
    assert sorted(p.name for p in there.rglob("*") if p.is_file()) == [
        "args.yaml", "best.safetensors", "last.pt", "metrics.jsonl",
    ]  # fmt: skip


def test_only_what_has_changed_is_copied_and_the_checkpoint_before_is_kept(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
):
    copied: list[str] = []
    put = places.put

    def count(local: Path, to: str, *, keep: bool = False) -> None:
        copied.append(local.name)
        put(local, to, keep=keep)

    monkeypatch.setattr("boxwright.tasks.train.run_store.put", count)
    here = make_run(tmp_path / "here", "1")
    store = RunStore(place, here)
    store.push()
    assert copied[-1] == "last.pt"
    copied.clear()
    (here / "weights" / "last.pt").write_text("22 the next one")
    store.push()
    assert copied == ["last.pt"]

    other = RunStore(place, tmp_path / "there")
    other.pull((LAST, PREVIOUS))
    weights = tmp_path / "there" / "weights"
    assert [(p.name, p.read_text()) for p in sorted(weights.iterdir())] == [
        ("last.previous.pt", "1 weights/last.pt"), ("last.pt", "22 the next one"),
    ]  # fmt: skip
    copied.clear()
    other.push()
    assert copied == [], "what has just come is not sent back"


def test_a_copy_that_is_torn_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    here = make_run(tmp_path / "here", "1")
    store = RunStore(f"{tmp_path}/far", here)
    store.push()
    system = fsspec.filesystem("file")

    def tear(local: str, path: str) -> None:
        Path(path).write_text("ha")
        raise OSError("the line is down")

    (here / "weights" / "last.pt").write_text("the second")
    with monkeypatch.context() as patch:
        patch.setattr(type(system), "put_file", lambda self, *args: tear(*args))
        with pytest.raises(CheckpointError, match=r"last\.pt' .*the line is down"):
            store.push()
        store.try_push()  # a warning

    other = RunStore(f"{tmp_path}/far", tmp_path / "there")
    other.pull()
    assert (tmp_path / "there" / "weights" / "last.pt").read_text() == "1 weights/last.pt"
    store.push()
    other.pull()
    assert (tmp_path / "there" / "weights" / "last.pt").read_text() == "the second"
    assert any(name.endswith(".part") for name in listed(f"{tmp_path}/far"))
    other.sweep("args.yaml")
    assert not any(name.endswith(".part") or name == "args.yaml" for name in listed(f"{tmp_path}/far"))


def test_the_one_before_counts_as_a_run_where_a_copy_stopped_half_way(tmp_path: Path, place: str):
    store = RunStore(place, make_run(tmp_path / "here", "1"))
    store.push()
    system, path = fsspec.core.url_to_fs(place)
    system.mv(f"{path}/weights/last.pt", f"{path}/weights/last.previous.pt")
    assert store.has_run()


def test_settings_come_from_the_store(tmp_path: Path, place: str):
    with pytest.raises(CheckpointError, match="holds no run to resume"):
        RunStore(place, tmp_path / "new").pull_settings()
    RunStore(place, make_run(tmp_path / "here", "1")).push()
    RunStore(place, tmp_path / "new").pull_settings()
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["args.yaml"]
