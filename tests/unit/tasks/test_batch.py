"""Batch prediction by this process: rows, errors, what is done again and what is refused."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.scenes import save_scene
from support.toy import ToySession

from boxwright.accel.places import locate
from boxwright.core.errors import CheckpointError, DataError, UsageError, WorkerError
from boxwright.core.signature import Signature
from boxwright.core.structure import flatten
from boxwright.runtimes.artifact import FORMAT
from boxwright.runtimes.base import Choice
from boxwright.runtimes.trust import hash_file
from boxwright.tasks.batch import worker
from boxwright.tasks.batch.config import BatchConfig
from boxwright.tasks.batch.inputs import list_inputs, read_part
from boxwright.tasks.batch.job import predict_in_batches
from boxwright.tasks.batch.worker import SCHEMA, ModelFiles
from boxwright.tasks.models import ModelOptions
from boxwright.tasks.predict.inputs import Failure
from boxwright.tasks.predict.predictor import Thresholds


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    for number in range(7):
        save_scene(folder / f"{number % 2}" / f"{number}.png", ("red", number, 0), ("blue", 0, 3))
    (folder / "0" / "broken.jpg").write_bytes(b"\xff\xd8\xff no image")
    (folder / "notes.txt").touch()
    save_scene(folder / ".hidden" / "a.png", ("red", 0, 0))
    return folder


def configure(toy_onnx: Path, data: Path | str, tmp_path: Path, **changes: Any) -> BatchConfig:
    return BatchConfig(
        **{"model": toy_onnx, "data": data, "out": tmp_path / "out", "workers": 1, "part_rows": 3} | changes
    )


def read(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(out, schema=SCHEMA).to_pylist()
    return rows


def test_code_of_another_user_is_refused_here_and_trusted_by_the_workers(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "art"
    folder.mkdir()
    (folder / "model.pt2").write_bytes(b"code")
    description = {
        "format": FORMAT,
        "choice": Choice(runtime="compile").to_dict(),
        "signature": Signature(inputs=(), outputs=(), call=flatten(((), {}))[1], result=flatten(())[1]).to_dict(),
        "spec": None,
        "files": {"model.pt2": hash_file(folder / "model.pt2")},
        "versions": {},
        "recipe": {},
        "distance": None,
        "measured": {},
    }
    (folder / "artifact.json").write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match=r"machine code.*--trust"):
        predict_in_batches(configure(folder, images, tmp_path))
    assert not (tmp_path / "out").exists()

    seen = []
    monkeypatch.setattr(worker, "choose_artifact", lambda path, **words: seen.append(words["trust"]) or path)
    monkeypatch.setattr(worker, "open_model", lambda *_, **words: seen.append(words["trust"]) or ToySession())
    result = predict_in_batches(configure(folder, images, tmp_path, trust=True))
    assert result.images == 8
    assert seen == [True, True]


def test_every_image_has_its_row_and_a_bad_one_says_why(toy_onnx: Path, images: Path, tmp_path: Path):
    result = predict_in_batches(configure(toy_onnx, images, tmp_path))

    rows = {row["path"]: row for row in read(tmp_path / "out")}
    assert len(rows) == result.images == 8
    assert (result.parts, result.skipped, result.errors, result.loads) == (3, 0, 1, 1)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "_manifest.json", *[f"part-0000{n}.parquet" for n in range(3)],
    ]  # fmt: skip
    bad = rows.pop(str(images / "0" / "broken.jpg"))
    assert "cut off" in bad["error"]
    assert {bad[name] for name in bad if name not in ("path", "error")} == {None}
    five = rows[str(images / "1" / "5.png")]
    assert (five["width"], five["height"], five["error"]) == (64, 64, None)
    assert sorted(zip(five["names"], five["class_ids"], strict=True)) == [("blue", 2), ("red", 0)]
    red = five["boxes_xyxy"][five["names"].index("red")]
    assert red == pytest.approx([40, 0, 48, 8], abs=0.5)
    assert min(five["scores"]) > 0.25


def test_a_run_that_was_stopped_goes_on_with_the_rest(toy_onnx: Path, images: Path, tmp_path: Path):
    config = configure(toy_onnx, images, tmp_path)

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_in_batches(config, progress=stop)
    first = (tmp_path / "out" / "part-00000.parquet").stat().st_mtime_ns
    (tmp_path / "out" / ".part-00002.parquet.abc.part").write_bytes(b"half")  # of a worker that was killed
    seen: list[tuple[int, int]] = []
    result = predict_in_batches(config, progress=lambda done, total: seen.append((done, total)))

    assert (result.skipped, seen) == (2, [(3, 3)])
    assert len({row["path"] for row in read(tmp_path / "out")}) == len(read(tmp_path / "out")) == 8
    assert (tmp_path / "out" / "part-00000.parquet").stat().st_mtime_ns == first
    assert not list((tmp_path / "out").glob(".part*"))
    assert predict_in_batches(config).skipped == 3


def test_other_images_are_refused(toy_onnx: Path, images: Path, tmp_path: Path):
    config = configure(toy_onnx, images, tmp_path)
    predict_in_batches(config)
    save_scene(images / "one_more.png", ("red", 0, 0))

    with pytest.raises(DataError, match=r"8 then, 9 now"):
        predict_in_batches(config)


@pytest.mark.parametrize(
    ("change", "name"),
    [({"part_rows": 4}, "part_rows"), ({"thresholds": Thresholds(conf=0.9)}, "thresholds")],
)
def test_other_settings_are_refused(toy_onnx: Path, images: Path, tmp_path: Path, change: dict[str, Any], name: str):
    config = configure(toy_onnx, images, tmp_path)
    predict_in_batches(config)
    with pytest.raises(UsageError, match=f"begun with another {name}"):
        predict_in_batches(replace(config, **change))


def test_results_of_nobody_knows_what_are_refused(toy_onnx: Path, images: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-00000.parquet").touch()
    with pytest.raises(UsageError, match=r"without _manifest\.json"):
        predict_in_batches(configure(toy_onnx, images, tmp_path))


@pytest.mark.parametrize("form", ["bytes", "struct", "no names"])
def test_a_table_of_images_gives_the_same_as_the_files(toy_onnx: Path, images: Path, tmp_path: Path, form: str):
    files = sorted(p for p in images.rglob("[0-9b]*.*") if ".hidden" not in p.parts)
    data = [path.read_bytes() for path in files]
    columns = {
        "bytes": {"path": [str(p) for p in files], "content": data, "label": list(range(8))},
        "struct": {"image": [{"bytes": d, "path": str(p)} for p, d in zip(files, data, strict=True)]},
        "no names": {"content": data},
    }[form]
    pq.write_table(pa.table(columns), tmp_path / "images.parquet", row_group_size=5)
    predict_in_batches(configure(toy_onnx, images, tmp_path, out=tmp_path / "from_files"))
    result = predict_in_batches(configure(toy_onnx, tmp_path / "images.parquet", tmp_path))

    assert result.parts == 3  # 3 and 2 rows of the first row group, 3 of the second
    drop = ["path", "error"] if form == "no names" else []
    ours, theirs = (pq.read_table(tmp_path / folder).drop(drop).to_pylist() for folder in ("out", "from_files"))
    assert ours == theirs
    if form == "no names":
        assert [row["path"].rpartition("#")[2] for row in read(tmp_path / "out")] == [str(n) for n in range(8)]


def test_it_must_be_clear_which_column_holds_the_images(tmp_path: Path):
    pq.write_table(pa.table({"a": [b"1"], "b": [b"2"], "c": [3]}), tmp_path / "t.parquet")
    place = str(tmp_path / "t.parquet")
    with pytest.raises(UsageError, match=r"2 of .* have bytes: a, b\. Say which"):
        list_inputs(place, part_rows=2)
    with pytest.raises(UsageError, match=r"column='c' .*: a, b"):
        list_inputs(place, part_rows=2, column="c")
    assert list_inputs(place, part_rows=2, column="b").place.column == "b"


def test_a_file_that_went_away_is_a_row_with_an_error(images: Path):
    inputs = list_inputs(str(images), part_rows=100)
    (images / "1" / "1.png").unlink()
    (gone,) = [item for item in read_part(inputs.place, inputs.parts[0]) if item.source.endswith("1/1.png")]
    assert isinstance(gone, Failure)
    assert "1/1.png" in str(gone.error)


def test_an_empty_or_mixed_or_missing_place_is_told(images: Path, tmp_path: Path):
    with pytest.raises(DataError, match="There is nothing at"):
        list_inputs(str(tmp_path / "away"), part_rows=1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no image and no \.parquet"):
        list_inputs(str(tmp_path / "empty"), part_rows=1)
    pq.write_table(pa.table({"a": [b"1"]}), images / "t.parquet")
    with pytest.raises(DataError, match=r"holds images .* and parquet files"):
        list_inputs(str(images), part_rows=1)


def test_results_inside_the_images_are_refused(toy_onnx: Path, images: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="inside the images"):
        predict_in_batches(configure(toy_onnx, images, tmp_path, out=images / "out"))


def test_a_worker_that_cannot_write_is_told_and_what_is_finished_stays(toy_onnx: Path, images: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-00001.parquet").mkdir()  # nothing can be moved onto a folder
    (tmp_path / "out" / "part-00001.parquet" / "keep").touch()
    with pytest.raises(WorkerError, match=r"1 of 3 parts failed.\nPart 1 .*IsADirectoryError.*\n.*same command"):
        predict_in_batches(configure(toy_onnx, images, tmp_path))
    for number, rows in ((0, 3), (2, 2)):  # those behind it too
        assert pq.read_metadata(tmp_path / "out" / f"part-0000{number}.parquet").num_rows == rows


def test_where_one_part_after_the_other_fails_the_rest_is_not_tried(toy_onnx: Path, images: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    for number in range(8):
        (tmp_path / "out" / f"part-0000{number}.parquet" / "keep").mkdir(parents=True)
    for number in range(7, 12):
        save_scene(images / f"{number}.png", ("red", 0, 0))
    with pytest.raises(WorkerError, match=r"8 of 8 parts failed(.|\n)*and 3 more\n"):
        predict_in_batches(configure(toy_onnx, images, tmp_path, part_rows=1))


def test_the_rows_of_a_damaged_table_say_so_and_the_others_are_read(toy_onnx: Path, images: Path, tmp_path: Path):
    folder = tmp_path / "tables"
    folder.mkdir()
    data = [(images / f"{n % 2}" / f"{n}.png").read_bytes() for n in range(7)]
    for name in "ab":
        pq.write_table(pa.table({"image": data}), folder / f"{name}.parquet", row_group_size=4)
    place = pq.read_metadata(folder / "a.parquet").row_group(1).column(0)
    with (folder / "a.parquet").open("r+b") as file:
        file.seek(place.dictionary_page_offset or place.data_page_offset)
        file.write(b"\xff" * 40)
    result = predict_in_batches(configure(toy_onnx, folder, tmp_path))
    assert (result.images, result.errors) == (14, 3)
    rows = {row["path"]: row["error"] for row in read(tmp_path / "out")}
    assert len(rows) == 14
    assert sorted(path for path, error in rows.items() if error) == [f"{folder}/a.parquet#{n}" for n in (4, 5, 6)]


def test_a_table_without_the_column_of_the_first_is_refused_at_once(tmp_path: Path):
    pq.write_table(pa.table({"image": [b"1"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"picture": [b"1"]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet' has no column 'image'"):
        list_inputs(str(tmp_path), part_rows=1)


def test_a_fifo_among_the_images_is_left_out_and_named(images: Path, caplog: pytest.LogCaptureFixture):
    before = list_inputs(str(images), part_rows=3).count
    os.mkfifo(images / "0" / "pipe.png")
    (images / "1" / "zero.png").symlink_to("/dev/zero")
    assert list_inputs(str(images), part_rows=3).count == before
    assert all(f"{name}.png" in caplog.text for name in ("pipe", "zero"))


def test_links_to_nowhere_and_to_themselves_and_odd_names(images: Path, caplog: pytest.LogCaptureFixture):
    (images / "0" / "again").symlink_to(images, target_is_directory=True)
    (images / "gone.jpg").symlink_to(images / "nowhere.jpg")
    Path(os.fsdecode(os.fsencode(images) + b"/\xff\xfe.jpg")).touch()
    inputs = list_inputs(str(images), part_rows=20)
    assert inputs.count == 9
    errors = {Path(item.source).name for item in read_part(inputs.place, inputs.parts[0]) if isinstance(item, Failure)}
    assert errors == {"broken.jpg", "gone.jpg"}
    assert "its name is not UTF-8: b'" in caplog.text


def test_an_artifact_is_unpacked_checked_and_keeps_working_without_its_files(tmp_path: Path):
    torch = pytest.importorskip("torch")
    from support.networks import lively_nano
    from support.scenes import NAMES, scene

    from boxwright.core.spec import Spec
    from boxwright.runtimes.artifact import write_artifact
    from boxwright.runtimes.base import Choice
    from boxwright.runtimes.source import Source

    folder = tmp_path / "nano"
    spec = Spec(model="yolox_nano", names=NAMES, size_hw=(64, 64))
    source = Source.of(lively_nano(), (torch.zeros(1, 3, 64, 64),))
    write_artifact(source, Choice(runtime="jit"), folder, spec=spec)
    files = ModelFiles.read(folder)

    with files.open(ModelOptions(), Thresholds(conf=0.0), threads=1) as predictor:
        assert len(predictor(scene(("red", 1, 1)))) > 0
    changed = replace(files, files=tuple((n, d if n != "golden.npz" else d + b"x") for n, d in files.files))
    assert changed.digest != files.digest
    with pytest.raises(CheckpointError, match=r"golden\.npz"):
        changed.open(ModelOptions(), Thresholds(), threads=1)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"engine": "rey"}, r"Unknown engine 'rey'\. Did you mean 'ray'"),
        ({"workers": 0}, "workers=0 is not possible"),
        ({"address": "auto"}, "address='auto' is for engine 'ray', and this is 'local'"),
        ({"engine": "ray", "master": "yarn"}, "master='yarn' is for engine 'spark'"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, wrong: dict[str, Any], words: str):
    with pytest.raises(UsageError, match=words):
        BatchConfig(model="m", data="d", out="o", **wrong)


def test_a_url_is_kept_and_a_path_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert locate("images/") == str(tmp_path / "images")
    assert locate("gs://bucket/x/") == "gs://bucket/x"


def test_a_url_works_as_a_path_does(toy_onnx: Path, images: Path, tmp_path: Path):
    config = configure(toy_onnx, f"file://{images}", tmp_path, out=f"file://{tmp_path}/there")
    predict_in_batches(config)
    assert read(tmp_path / "there")[0]["path"] == f"file://{images}/0/0.png"
    assert json.loads((tmp_path / "there" / "_manifest.json").read_text())["images"] == 8
    assert predict_in_batches(config).skipped == 3


def test_what_pyarrow_does_not_know_is_reached_by_fsspec(toy_onnx: Path, images: Path, tmp_path: Path):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    config = configure(toy_onnx, images, tmp_path, out=f"memory://{tmp_path.name}/out")
    predict_in_batches(config)
    assert predict_in_batches(config).skipped == 3
    system = fsspec.filesystem("memory")
    names = sorted(path.rpartition("/")[2] for path in system.ls(f"/{tmp_path.name}/out", detail=False))
    assert names == ["_manifest.json", *[f"part-0000{n}.parquet" for n in range(3)]]
    with pytest.raises(DataError, match="can't be opened"):
        predict_in_batches(replace(config, out="nowhere://x"))


def test_accelerators_are_for_the_engine_of_this_machine() -> None:
    for engine in ("ray", "spark"):
        with pytest.raises(UsageError, match=f"{engine} hands out cpus only"):
            BatchConfig(model="a.pth", data="images", out="out", engine=engine, device="cuda")  # type: ignore[arg-type]
        BatchConfig(model="a.pth", data="images", out="out", engine=engine, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Unknown device 'gpu'"):
        BatchConfig(model="a.pth", data="images", out="out", device="gpu")
