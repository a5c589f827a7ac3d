"""The Estimator and what its users build with."""

from boxwright.accel.estimator.callbacks import Callback, MainCallback
from boxwright.accel.estimator.estimator import Estimator
from boxwright.accel.estimator.metrics import Accuracy, EvaluatorMetric
from boxwright.accel.estimator.model_checkpoint import ModelCheckpoint
from boxwright.accel.estimator.run import Run
from boxwright.accel.estimator.sources import Sharded
from boxwright.accel.estimator.tensorboard import TensorBoardCallback
from boxwright.core.metrics import Metric

__all__ = [
    "Accuracy",
    "Callback",
    "Estimator",
    "EvaluatorMetric",
    "MainCallback",
    "Metric",
    "ModelCheckpoint",
    "Run",
    "Sharded",
    "TensorBoardCallback",
]
