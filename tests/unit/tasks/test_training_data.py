"""What a training run does with its data before the first step."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from boxwright.core.errors import DataError
from boxwright.data.check import CheckReport, Finding
from boxwright.data.fingerprint import fingerprint
from boxwright.data.records import Records
from boxwright.data.split import split_records
from boxwright.data.synthetic import generate_scenes
from boxwright.tasks.train.config import TrainConfig
from boxwright.tasks.train.data import leave_out_bad, read_sets, run_in_all, run_in_first


@dataclass
class Process:
    """One process of a run as the data code sees it; `exchange` answers its collectives."""

    global_rank: int = 0
    world_size: int = 1
    exchange: Callable[[str, Any], Any] = lambda kind, value: value

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    @property
    def is_distributed(self) -> bool:
        return self.world_size > 1

    def broadcast(self, value: Any) -> Any:
        return self.exchange("broadcast", value)

    def all_gather(self, value: Any) -> Any:
        return self.exchange("all_gather", value)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    scenes = generate_scenes(tmp_path / "set", images=7, seed=6, size_hw=(64, 64), classes=["circle"])
    scenes.path(3).write_bytes(b"")
    return scenes


def config_for(tmp_path: Path, **values: Any) -> TrainConfig:
    return TrainConfig(
        model="yolox_nano", data=tmp_path / "set", output_dir=tmp_path / "run", max_error_rate=0.5, **values
    )


def test_each_process_checks_its_share_and_all_leave_the_same_images_out(tmp_path: Path, records: Records) -> None:
    nothing, config = records.select([]), config_for(tmp_path)
    shares: list[Any] = []

    def second(kind: str, value: Any) -> Any:
        if kind == "all_gather" and isinstance(value, list):
            shares.append(value)
            raise InterruptedError  # its share is all that is wanted
        return [value] if kind == "all_gather" else (True, None)  # the first process has no earlier report

    with pytest.raises(InterruptedError):
        leave_out_bad(Process(1, 2, second), records, nothing, config)  # type: ignore[arg-type]
    assert [finding.index for fact in shares[0] for finding in fact.findings] == [3]
    assert len(shares[0]) == 3

    def first(kind: str, value: Any) -> Any:
        if kind == "all_gather":
            return [value, shares[0] if isinstance(value, list) else True]
        return value

    good = leave_out_bad(Process(0, 2, first), records, nothing, config)  # type: ignore[arg-type]
    assert good.image_ids.tolist() == [0, 1, 2, 4, 5, 6]
    assert CheckReport.load(tmp_path / "run/data_report.json").bad_images() == [3]


def test_the_report_is_for_the_same_set_in_another_place_too(tmp_path: Path, records: Records) -> None:
    nothing, config = records.select([]), config_for(tmp_path)
    leave_out_bad(Process(), records, nothing, config)  # type: ignore[arg-type]
    report = CheckReport.load(tmp_path / "run/data_report.json")
    there = replace(records, root=shutil.copytree(tmp_path / "set", tmp_path / "copy"))

    def second(_: str, value: Any) -> Any:
        return (True, report) if isinstance(value, tuple) else value

    good = leave_out_bad(Process(1, 2, second), there, nothing, config)  # type: ignore[arg-type]
    assert good.root == tmp_path / "copy"
    assert good.image_ids.tolist() == [0, 1, 2, 4, 5, 6]


def test_a_resumed_run_checks_again_only_if_the_data_changed(tmp_path: Path, records: Records) -> None:
    nothing, config = records.select([]), config_for(tmp_path)
    leave_out_bad(Process(), records, nothing, config)  # type: ignore[arg-type]
    # A report that says something untrue shows whether it is used.
    report = CheckReport.load(tmp_path / "run/data_report.json")
    untrue = Finding(rule="truncated", image="000005.jpg", index=5, message="it is cut off.")
    replace(report, findings=(*report.findings, untrue)).save(tmp_path / "run/data_report.json")
    fingerprint(records.select([0, 1, 2, 4, 6])).write_lock(tmp_path / "run/data.lock")
    resumed = replace(config, resume=True)
    assert len(leave_out_bad(Process(), records, nothing, resumed)) == 5  # type: ignore[arg-type]
    os.utime(records.path(1), ns=(1, 1))
    assert len(leave_out_bad(Process(), records, nothing, resumed)) == 6  # type: ignore[arg-type]
    (tmp_path / "run/data_report.json").write_text("{}")
    assert len(leave_out_bad(Process(), records, nothing, resumed)) == 6  # type: ignore[arg-type]


def test_the_check_can_be_switched_off(tmp_path: Path, records: Records) -> None:
    config = config_for(tmp_path, check=False)
    assert leave_out_bad(Process(), records, records.select([]), config) is records  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_labels_are_parsed_once_and_found_again_where_another_machine_has_the_set(
    tmp_path: Path, records: Records
) -> None:
    sent: list[Any] = []
    config = config_for(tmp_path, val=0.3)

    def keep(kind: str, value: Any) -> Any:
        sent.append(value)
        return value

    train, held_out = read_sets(Process(0, 2, keep), config, tmp_path / "set")  # type: ignore[arg-type]
    assert [part.image_ids.tolist() for part in (train, held_out)] == [
        part.image_ids.tolist() for part in split_records(records, val=0.3)
    ]
    shutil.copytree(tmp_path / "set", tmp_path / "elsewhere")
    (tmp_path / "elsewhere/instances.json").unlink()
    there = Process(1, 2, lambda kind, value: sent[0])
    train, _ = read_sets(there, config, tmp_path / "elsewhere")  # type: ignore[arg-type]
    assert train.path(0).is_relative_to(tmp_path / "elsewhere")
    assert train.path(0).is_file()
    with pytest.raises(DataError, match="nowhere"):
        read_sets(there, config, tmp_path / "nowhere")  # type: ignore[arg-type]


def test_what_is_wrong_with_the_labels_reaches_every_process(tmp_path: Path) -> None:
    sent: list[Any] = []
    config = config_for(tmp_path)
    with pytest.raises(DataError, match="no data set at"):
        read_sets(Process(0, 2, lambda kind, value: sent.append(value) or value), config, tmp_path / "none")  # type: ignore[arg-type,func-returns-value]
    with pytest.raises(DataError, match="no data set at"):
        read_sets(Process(1, 2, lambda kind, value: sent[0]), config, tmp_path / "none")  # type: ignore[arg-type]


def test_the_others_are_answered_while_the_first_process_works() -> None:
    asked = Event()
    answers: list[Any] = []

    def exchange(kind: str, value: Any) -> Any:
        answers.append(value)
        asked.set()
        return value

    assert run_in_first(Process(0, 2, exchange), lambda: asked.wait(60), answer_every_s=0.01)  # type: ignore[arg-type]
    assert answers[0] == (False, None)
    assert answers[-1] == (True, True)


def test_processes_meet_while_one_of_them_is_slower_than_the_others() -> None:
    met = Event()
    flags: list[Any] = []

    def exchange(kind: str, value: Any) -> Any:
        flags.append(value)
        met.set()
        return [value, "theirs" if value == "ours" else True]

    def work() -> str:
        assert met.wait(60)
        return "ours"

    assert run_in_all(Process(0, 2, exchange), work, answer_every_s=0.01) == ["ours", "theirs"]  # type: ignore[arg-type]
    assert flags[0] is False
    with pytest.raises(DataError, match="far away"):
        run_in_all(
            Process(0, 2, lambda kind, value: [value, True if value is True else DataError("far away")]),  # type: ignore[arg-type]
            lambda: 1,
        )
