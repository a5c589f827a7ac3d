"""Scoring in the middle of a training: every process its share of the images, the metric over all of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from boxwright.accel.nano import TorchNano
from boxwright.core.spec import Spec
from boxwright.data.records import Records
from boxwright.evaluation.coco import CocoEvaluator
from boxwright.runtimes.base import Session
from boxwright.runtimes.eager import EagerSession
from boxwright.tasks.evaluate import OFFICIAL, collect
from boxwright.tasks.predict.predictor import Predictor


class _FullBatches:
    """A session that sees batches of one size only: the last one is filled up, and what that gives is cut off."""

    def __init__(self, session: Session, batch: int) -> None:
        self.spec, self._session, self._batch = session.spec, session, batch

    def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        filled = np.zeros((self._batch, *images.shape[1:]), images.dtype)
        filled[: len(images)] = images
        return self._session(filled)[: len(images)]

    def close(self) -> None:
        self._session.close()


def score_model(nano: TorchNano, network: nn.Module, spec: Spec, records: Records, *, batch: int = 8) -> Any:
    """Return the COCO metrics of a network, the same in every process; each image is counted once."""
    share = records.select(range(nano.global_rank, len(records), nano.world_size))
    was_training = network.training
    evaluator = CocoEvaluator(records.names)
    if len(share):
        session: Session = EagerSession(network, spec, device=nano.device)
        if nano.hardware.static_shapes:
            session = _FullBatches(session, batch)
        predictor = Predictor(session, OFFICIAL)
        evaluator, _ = collect(predictor, share, batch=batch)
    network.train(was_training)
    if not nano.is_distributed:
        return evaluator.evaluate()
    states = nano.all_gather(evaluator.state())
    metrics = None
    if nano.is_global_zero:
        whole = CocoEvaluator(records.names)
        for state in states:
            whole.merge(CocoEvaluator.from_state(state))
        metrics = whole.evaluate()
    return nano.broadcast(metrics)
