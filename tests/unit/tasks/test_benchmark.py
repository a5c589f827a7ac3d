"""What `benchmark` makes of models before and after they run; the race itself is another test's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.toy import save_toy_onnx, toy_spec
from torch import nn

from boxwright.core.cpu import read_cpu
from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.timing import Timing
from boxwright.optimize.timing import Latency
from boxwright.runtimes.artifact import write_artifact
from boxwright.runtimes.base import Choice, Tuning
from boxwright.runtimes.onnx_nms import suppress_file
from boxwright.runtimes.source import Source
from boxwright.tasks.benchmark import Benchmark, benchmark
from boxwright.tasks.models import open_model


@pytest.fixture(autouse=True)
def raced(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Take the place of the race: every model needs two milliseconds, and one named "bad" does not run."""
    seen: dict[str, Any] = {}

    def race(nursery: Any, targets: Mapping[str, Any], *_: Any, **__: Any) -> dict[str, Latency]:
        seen.update(targets)
        failed = Latency(failure="it fell over")
        done = Latency(timing=Timing(samples_ms=(2.0, 2.0)), peak_bytes=2**20)
        return {name: failed if target.args[0].stem == "bad" else done for name, target in targets.items()}

    monkeypatch.setattr("boxwright.tasks.benchmark.race", race)
    return seen


def _figures(result: Benchmark) -> list[tuple[float | None, float | None]]:
    return [(row.latency_ms, row.ratio) for row in result.rows]


def test_a_damaged_model_is_a_row_with_the_reason_and_the_others_are_timed(tmp_path: Path) -> None:
    good, broken = save_toy_onnx(tmp_path / "good.onnx"), tmp_path / "broken.onnx"
    broken.write_bytes(good.read_bytes()[:-20])
    result = benchmark([broken, good, good])
    assert _figures(result) == [(None, None), (2.0, 1.0), (2.0, 1.0)]
    assert result.exit_code == 4
    assert "can't be loaded by ONNX Runtime" in result.rows[0].note
    assert result.rows[0].note in result.lines()[1]
    assert result.to_dict()["rows"][0]["latency_ms"] is None


def test_code_of_another_user_is_a_row_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raced: dict[str, Any]
) -> None:
    source = Source.of(nn.Conv2d(3, 2, 1), (torch.zeros(1, 3, 64, 64),))
    write_artifact(source, Choice(runtime="jit"), tmp_path / "art")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    result = benchmark([tmp_path / "art"])
    assert result.exit_code == 4
    assert "--trust" in result.rows[0].note
    assert not raced
    assert benchmark([tmp_path / "art"], trust=True).exit_code == 0
    raced["0"](Tuning(threads=1)).close()  # as its child does


def test_a_model_that_does_not_run_is_a_row_with_the_reason(tmp_path: Path) -> None:
    paths = [save_toy_onnx(tmp_path / name) for name in ("bad.onnx", "good.onnx")]
    result = benchmark(paths)
    assert _figures(result) == [(None, None), (2.0, 1.0)]
    assert result.rows[0].note == "It does not run: it fell over."
    assert result.exit_code == 5


def test_nothing_that_can_be_run_is_a_table_of_reasons(tmp_path: Path, raced: dict[str, Any]) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"")
    assert benchmark([broken]).exit_code == 4
    assert raced == {}


def test_a_file_with_another_fixed_batch_is_refused(tmp_path: Path) -> None:
    paths = [save_toy_onnx(tmp_path / "any.onnx"), save_toy_onnx(tmp_path / "three.onnx", batch=3)]
    with pytest.raises(UsageError, match=r"three\.onnx' .*batch=1"):
        benchmark(paths)
    assert benchmark(paths, batch=3).exit_code == 0


def test_suppression_inside_a_file_is_remarked(tmp_path: Path) -> None:
    decoded = save_toy_onnx(tmp_path / "decoded.onnx", form="decoded", spec=toy_spec(output="decoded"))
    suppress_file(decoded, tmp_path / "ends.onnx", conf=0.25, nms=0.45, max_boxes=5)
    result = benchmark([decoded, tmp_path / "ends.onnx"])
    assert [row.note for row in result.rows] == ["", "with the suppression inside the file"]
    assert result.lines()[2].endswith("with the suppression inside the file")


def test_a_hint_times_many_requests_side_by_side_and_says_how(
    tmp_path: Path, raced: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, weights, cores = save_toy_onnx(tmp_path / "toy.onnx"), tmp_path / "toy.pth", read_cpu().usable_cores
    weights.touch()
    result = benchmark([path, weights], hint="throughput")
    requests = 4 * max(2, cores)
    assert (result.requests, result.threads) == (requests, None)
    assert _figures(result) == [(2.0 / requests, 1.0)] * 2
    assert "requests in a run, times are for one of them" in result.lines()[-1]
    assert result.explain().startswith(f"{path}\nFor throughput: 1 instance")
    arrangement = result.rows[0].arrangement
    assert arrangement is not None
    assert arrangement.side_by_side == cores
    assert [row["arrangement"] for row in result.to_dict()["rows"]] == [arrangement.name, None]
    inner = open_model(path)
    monkeypatch.setattr("boxwright.tasks.benchmark.open_model", lambda *_, **__: inner)
    graph = raced["0"](Tuning())
    pictures = np.zeros((1, 3, 64, 64), np.float32)
    np.testing.assert_array_equal(graph.run([pictures])[0], open_model(path)(pictures))
    graph.close()
    with pytest.raises(CheckpointError, match="closed"):
        inner.graph.run([pictures])


def test_threads_beside_a_hint_are_refused(toy_onnx: Path) -> None:
    with pytest.raises(UsageError, match="hint='latency' chooses the threads itself"):
        benchmark([toy_onnx], threads=1, hint="latency")
