"""The Estimator and what its users build with."""

from boxwright.accel.estimator.estimator import Estimator
from boxwright.accel.estimator.metrics import Accuracy, EvaluatorMetric
from boxwright.accel.estimator.sources import Sharded
from boxwright.accel.estimator.state import Callback, Run
from boxwright.core.metrics import Metric

__all__ = ["Accuracy", "Callback", "Estimator", "EvaluatorMetric", "Metric", "Run", "Sharded"]
