"""8-bit OpenVINO models by NNCF, which measures value ranges on real inputs."""

import hashlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from typing import Any

import numpy as np

from boxwright.core.affinity import unbound
from boxwright.core.errors import ConversionError
from boxwright.core.files import whole_file
from boxwright.core.signature import Array
from boxwright.core.types import Precision
from boxwright.runtimes.base import first_line
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.fold import fold_copy
from boxwright.runtimes.openvino_convert import find_module
from boxwright.runtimes.parity import BOUNDS, distance
from boxwright.runtimes.quantized import FLOAT_LAYERS, choose_layers
from boxwright.runtimes.source import PREFIX, Source, check_names
from boxwright.runtimes.telemetry import no_telemetry

with no_telemetry(), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # NNCF imports packages that warn about themselves
    import nncf
    import openvino
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

_HEAVY = (
    "Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData", "MatMul",
)  # fmt: skip
_PRODUCT = "Multiply"
_ARITHMETIC = ("Add", "Subtract", _PRODUCT, "Divide", "Power", "MVN", "ScaledDotProductAttention")
_NOTE = ["boxwright", "quantisation"]
_USUAL, _WIDE = "mean of the samples' bounds", "histogram"
# The usual estimate loses the least AP on trained models (docs/explanation/quantisers.md). It cuts off a sample whose
# values are far larger than the other samples', as those of a barely trained model may be. A histogram of all samples
# keeps them.
_RANGES = {_USUAL: RangeEstimatorParametersSet.MEAN_MINMAX, _WIDE: RangeEstimatorParametersSet.HISTOGRAM}
_COMPARED = 32  # samples on which the choice between the two is made


def quantize(
    model: Any, source: Source, calibration: Calibration, *, nncf_chooses: bool = False
) -> tuple[Any, dict[str, Any]]:
    """Return the model with 8-bit layers, and how it was quantised.

    NNCF can't store its statistics, so `calibration.cache` holds quantised models, keyed by the samples, the weights
    and all settings.

    Args:
        model: the OpenVINO model of `source`, with its own names.
        source: the torch model it was converted from.
        calibration: samples, and what to leave in float.
        nncf_chooses: quantise every kind of layer that NNCF knows, instead of those of `quantized.choose_layers`.

    Raises:
        UsageError: a layer to keep in float does not exist.
        ConversionError: there is no layer to quantise, or NNCF fails.
    """
    if nncf_chooses:
        kept = find_nodes(model, source, calibration.keep_float)
        layers: dict[str, Any] = {"ignored_types": [_PRODUCT]}
    else:
        kept, quantized = _choose_nodes(model, source, calibration.keep_float)
        layers = {"quantized": quantized, "float": FLOAT_LAYERS, "ignored_types": list(_ARITHMETIC)}
    recipe: dict[str, Any] = layers | {
        "quantizer": f"nncf {version('nncf')}",
        "preset": "mixed",  # weights symmetric, activations not: SiLU's output ranges from -0.28 to far above 0
        "samples": len(calibration.samples),
        "samples_sha": calibration.fingerprint(),
        "keep_float": list(calibration.keep_float),
        "ignored_nodes": len(kept),
    }
    cached = None
    if calibration.cache is not None:
        cached = calibration.cache / f"openvino-{_key(model, recipe)}.xml"
        if cached.is_file():
            stored = openvino.Core().read_model(cached)
            return stored, recipe | json.loads(stored.get_rt_info(_NOTE).astype(str))
    names = [port.name for port in source.signature.inputs]
    scope = nncf.IgnoredScope(names=kept, types=recipe["ignored_types"], validate=False)

    def attempt(ranges: str, correct: bool = True) -> tuple[Any, dict[str, Any]]:
        parameters = AdvancedQuantizationParameters(
            disable_bias_correction=not correct, activations_range_estimator_params=_RANGES[ranges]
        )
        try:
            quantised = nncf.quantize(
                model.clone(),
                nncf.Dataset(calibration.samples, lambda sample: dict(zip(names, sample, strict=True))),
                preset=nncf.QuantizationPreset.MIXED,
                subset_size=len(calibration.samples),
                ignored_scope=scope,
                advanced_parameters=parameters,
            )
        except (ValueError, RuntimeError) as error:
            if not correct:
                raise
            # NNCF takes any constant added after a layer for that layer's bias, even a scalar, and then fails; and it
            # needs shapes that are fixed at each layer.
            quantised, note = attempt(ranges, correct=False)
            return quantised, note | {"bias_correction": f"none, it failed: {first_line(error)}"}
        return quantised, {"bias_correction": "fast", "ranges": ranges}

    try:
        with _quiet():
            quantised, note = attempt(_USUAL)
            far = _distance(quantised, model, calibration.samples)
            if far > BOUNDS[Precision.INT8]:
                other, other_note = attempt(_WIDE)
                if _distance(other, model, calibration.samples) < far:
                    quantised, note = other, other_note
    except Exception as error:  # NNCF and OpenVINO raise many kinds
        raise ConversionError(f"NNCF can't quantise the model: {error}") from error
    quantised.set_rt_info(json.dumps(note), _NOTE)
    if cached is not None:
        with whole_file(cached) as draft:
            openvino.save_model(quantised, draft, compress_to_fp16=False)
            draft.with_suffix(".bin").replace(cached.with_suffix(".bin"))
    return quantised, recipe | note


def _distance(model: Any, original: Any, samples: Sequence[tuple[Array, ...]]) -> float:
    """Return how far a model's outputs are from the original's on the worst sample."""
    with unbound():
        runs = [
            openvino.Core().compile_model(each, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            for each in (model, original)
        ]
    worst = 0.0
    for sample in samples[:_COMPARED]:
        have, want = ([np.array(a) for a in run(list(sample)).values()] for run in runs)
        worst = max(worst, distance(have, want))
    return worst


def find_nodes(model: Any, source: Source, modules: Sequence[str]) -> list[str]:
    """Return the names of the OpenVINO nodes of torch modules and everything inside them.

    Raises:
        UsageError: there is no such module.
    """
    if not modules:
        return []
    known = [name for name, _ in source.model.named_modules()]
    check_names(modules, known)
    wanted = tuple(f"{PREFIX}{name}." for name in modules)
    names = [node.get_friendly_name() for node in model.get_ops()]
    return [name for name in names if f"{find_module(name)}.".startswith(wanted)]


def _choose_nodes(model: Any, source: Source, keep_float: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of the heavy nodes that stay in float, and the modules of the others."""
    module = fold_copy(source)
    chosen = choose_layers(module, source.example, keep_float)
    heavy = [node.get_friendly_name() for node in model.get_ordered_ops() if node.get_type_name() in _HEAVY]
    quantized = [name for name in dict.fromkeys(map(find_module, heavy)) if name in chosen]
    if not quantized:
        raise ConversionError(
            f"None of the {len(chosen)} layers to quantise has its name in the OpenVINO model. "
            "Use mode 'nncf', which needs no names."
        )
    kept = [name for name in heavy if find_module(name) not in chosen]
    return kept, [name.removeprefix(PREFIX) for name in quantized]


def _key(model: Any, recipe: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode())
    for node in model.get_ordered_ops():
        # OpenVINO numbers its generated names through the whole process, so they are left out.
        digest.update(f"{node.get_type_name()} {node.get_attributes()} {node.get_output_size()}".encode())
        if node.get_type_name() == "Constant":
            digest.update(node.get_data().tobytes())
    return digest.hexdigest()[:16]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep NNCF's progress bars and notes off stdout, which is for results."""
    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
