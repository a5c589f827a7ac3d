"""The classifier example, on Spark and on this machine's own processes."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "estimator_classifier.py"


@pytest.mark.parametrize("backend", ["subprocess", "spark"])
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_the_classifier_learns_and_its_predictions_are_what_was_scored(
    backend: str, request: pytest.FixtureRequest
) -> None:
    if backend == "spark":
        request.getfixturevalue("spark_here")
    spec = importlib.util.spec_from_file_location("estimator_classifier", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    result = example.run(backend, workers=2, epochs=4, points=400)
    assert result["scored"] == result["counted"]
    assert result["scored"] > 0.85, "a third by chance"
