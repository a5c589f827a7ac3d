"""AP of a network while it trains."""

from typing import Any

from numpy.typing import NDArray
from torch import nn

from boxwright.accel.nano import TorchNano
from boxwright.core.spec import Spec
from boxwright.data.records import Records
from boxwright.evaluation.coco import CocoEvaluator
from boxwright.runtimes.eager import open_network
from boxwright.tasks.evaluate import OFFICIAL, collect
from boxwright.tasks.predict.predictor import Predictor


def score_model(
    nano: TorchNano, network: nn.Module, spec: Spec, records: Records, *, batch: int = 8
) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Return the COCO metrics of a network, the same in every process; each image is counted once.

    The second value is the state of the evaluator with all detections; it is empty except in the first process.
    """
    share = records.select(range(nano.global_rank, len(records), nano.world_size))
    was_training = network.training
    evaluator = CocoEvaluator(records.names)
    if len(share):
        fixed = batch if nano.hardware.static_shapes else None
        session = open_network(network, spec, device=nano.device, batch=fixed)
        evaluator, _ = collect(Predictor(session, OFFICIAL), share, batch=batch)
    network.train(was_training)
    if not nano.is_distributed:
        return evaluator.evaluate(), evaluator.state()
    states = nano.all_gather(evaluator.state())
    metrics: Any = None
    found: dict[str, NDArray[Any]] = {}
    if nano.is_global_zero:
        whole = CocoEvaluator(records.names)
        for state in states:
            whole.merge(CocoEvaluator.from_state(state))
        metrics, found = whole.evaluate(), whole.state()
    return nano.broadcast(metrics), found
