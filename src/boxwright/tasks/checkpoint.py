"""Weight files as sessions: the network is built around them and runs in PyTorch."""

from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from boxwright.core.errors import CheckpointError, UsageError
from boxwright.core.log import get_logger
from boxwright.core.spec import Spec
from boxwright.detector.sizes import SIZES
from boxwright.detector.weights import State, check_finite, count_classes, identify, load_weights, read_state
from boxwright.detector.yolox import Yolox, build
from boxwright.devices.chosen import Chosen
from boxwright.runtimes.base import Tuning
from boxwright.runtimes.detector import DetectorSession
from boxwright.runtimes.device_graph import open_network_on
from boxwright.runtimes.eager import open_network
from boxwright.tasks.info import Cost
from boxwright.tasks.models import ModelOptions, default_names

_log = get_logger(__name__)
_STRIDES = (8, 16, 32)


def read_checkpoint(path: Path, options: ModelOptions) -> tuple[Yolox, Spec]:
    """Return the network with the file's weights, and its spec.

    Raises:
        CheckpointError: the file is missing, broken, or of another network.
        UsageError: the options don't fit the file.
    """
    state, spec = _read(path, options)
    try:
        model = build(spec.model, spec.num_classes, spec.activation)
    except UsageError as error:
        if options.activation is not None:
            raise
        raise CheckpointError(f"The description inside {str(path)!r} can't be read: {error}") from error
    _log.debug("%s: %s", path.name, load_weights(model, state).sentence())
    return model.eval(), spec


def read_spec(path: Path, options: ModelOptions) -> Spec:
    """Return the spec of a weight file without building its network; raises as `read_checkpoint` does."""
    return _read(path, options)[1]


def _read(path: Path, options: ModelOptions) -> tuple[State, Spec]:
    state, spec = read_state(path)
    if spec is None:
        model_name, num_classes = identify(state)
        size = SIZES[model_name]
        names, ids = default_names(num_classes, path, options)
        spec = Spec(model=model_name, names=names, size_hw=size.input_hw, activation=size.act, category_ids=ids)
    elif spec.model not in SIZES or spec.strides != _STRIDES:
        raise CheckpointError(
            f"The description inside {str(path)!r} can't be used: there is no network {spec.model!r} with strides "
            f"{spec.strides!r}. Names: {', '.join(SIZES)}; strides {_STRIDES!r}."
        )
    elif count_classes(state) != spec.num_classes:
        raise CheckpointError(
            f"{str(path)!r} names {spec.num_classes} classes, but its weights are for {count_classes(state)}. Use a "
            "file whose names fit its weights, such as the one that training wrote."
        )
    check_finite(state, path)
    return state, options.apply(spec)


def open_checkpoint(
    path: Path, options: ModelOptions, *, device: str = "cpu", threads: int | None = None
) -> DetectorSession:
    """Return a PyTorch session over a weight file, on a device that torch knows by this name."""
    model, spec = read_checkpoint(path, options)
    return open_network(model.to(device), spec, device=torch.device(device), threads=threads)


def open_checkpoint_on(path: Path, options: ModelOptions, place: Chosen, tuning: Tuning | None) -> DetectorSession:
    """Return a session over a weight file on an accelerator, where each batch size is captured as a graph.

    Raises:
        UsageError: there is no such device.
    """
    model, spec = read_checkpoint(path, options)
    return open_network_on(model, spec, place, hint="latency" if tuning is None else tuning.hint)


def measure_cost(spec: Spec) -> Cost:
    """Return parameters and GFLOPs (two for each multiply-add) of one image through the spec's network."""
    with torch.device("meta"):  # shapes are enough, nothing is computed
        model = build(spec.model, spec.num_classes, spec.activation).eval()
        images = torch.zeros(1, 3, *spec.size_hw)
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(images)
    return Cost(parameters=sum(p.numel() for p in model.parameters()), gflops=counter.get_total_flops() / 1e9)
