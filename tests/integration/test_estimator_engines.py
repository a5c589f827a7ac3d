"""The Estimator on Ray and on Spark: the same weights, the same words, the same recovery as on one machine."""

import os
from pathlib import Path
from typing import Any

import pytest
from support.estimation import KillOnce, assert_same_weights, make_estimator, make_loader, train_plainly

from boxwright.launchers.base import WorkerFailed

ENGINES = ["ray", "spark"]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue(f"{request.param}_here")
    return str(request.param)


@pytest.mark.more
def test_a_worker_killed_on_an_engine_costs_nothing_but_time(
    engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"backend": engine, "workers_per_node": 2, "config": {"samples": 20}}
    estimator = make_estimator(**settings, model_dir=tmp_path / "model")
    stats = estimator.fit(make_loader, epochs=2, batch_size=4, callbacks=[KillOnce(tmp_path / "flag", epoch=2)])
    assert (tmp_path / "flag").exists()
    assert "Restarting all workers (1 of 2)" in caplog.text
    assert [(s["epoch"], s["num_samples"]) for s in stats] == [(1, 20), (2, 20)]
    assert_same_weights(estimator.get_state_dict(), train_plainly(2, 4, 20))


def test_lines_and_errors_come_from_an_engine_with_their_rank(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    def talk_and_fail(batch: Any) -> Any:
        rank = os.environ["RANK"]
        print(f"hello from {rank}")
        if rank == "1":
            raise LookupError("no such colour")
        return batch

    estimator = make_estimator(backend=engine, workers_per_node=2, preprocess=talk_and_fail)
    with pytest.raises(WorkerFailed, match=r"Worker 1 .*no such colour") as caught:
        estimator.fit(make_loader, epochs=1, batch_size=4)
    assert 'raise LookupError("no such colour")' in str(caught.value)
    out, err = capsys.readouterr()
    assert "[rank 1] hello from 1\n" in out
    assert "no such colour" not in out + err
