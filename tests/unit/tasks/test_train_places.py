"""Where the data, the weights and the files of a run may be: what fits together and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from boxwright.accel.strategy import make_launcher
from boxwright.core.config import load_config, to_yaml
from boxwright.core.errors import DataError, UsageError
from boxwright.tasks.train.run import TrainConfig, train


def configure(tmp_path: Path, **changes: Any) -> TrainConfig:
    settings = {"model": "yolox_nano", "data": tmp_path / "set", "output_dir": tmp_path / "out"}
    return TrainConfig(**(settings | changes))


@pytest.mark.parametrize("strategy", ["subprocess", "spawn"])
def test_there_is_nothing_to_ship_on_one_machine(tmp_path: Path, strategy: str):
    with pytest.raises(UsageError, match=f"'{strategy}'.*nothing to ship"):
        configure(tmp_path, strategy=strategy, ship=True)


def test_a_url_is_not_shipped(tmp_path: Path):
    with pytest.raises(UsageError, match="every machine fetches itself"):
        configure(tmp_path, strategy="ray", ship=True, data="s3://bucket/set")


def test_only_a_folder_is_shipped(tmp_path: Path):
    pytest.importorskip("ray", reason="ray is not installed")
    with pytest.raises(UsageError, match="ship=true sends a folder"):
        train(configure(tmp_path, strategy="ray", ship=True))


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_the_store_is_not_the_folder_of_the_run(tmp_path: Path, form: str):
    with pytest.raises(UsageError, match="is output_dir itself"):
        train(configure(tmp_path, store=form.format(tmp_path / "out")))


def test_a_url_with_nothing_behind_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="There is nothing at 'file:///nowhere'"):
        train(configure(tmp_path, data="file:///nowhere"))


def test_a_url_stays_as_it_is_in_the_settings(tmp_path: Path):
    config = load_config(
        TrainConfig, None, ["model=yolox_nano", "data=s3://bucket/set", f"output_dir={tmp_path}", "store=gs://b/run"]
    )
    assert (config.data, config.store) == ("s3://bucket/set", "gs://b/run")
    (tmp_path / "args.yaml").write_text(to_yaml(config))
    assert load_config(TrainConfig, tmp_path / "args.yaml") == config


def test_files_are_for_engines():
    with pytest.raises(UsageError, match="every process reads them where they are"):
        make_launcher("subprocess", files=(Path("x"),))
