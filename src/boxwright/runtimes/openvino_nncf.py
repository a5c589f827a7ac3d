"""8-bit OpenVINO models with NNCF, which measures value ranges on real inputs."""

import hashlib
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any

from boxwright.core.errors import ConversionError, UsageError, suggest
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.openvino_convert import find_module
from boxwright.runtimes.source import PREFIX, Source
from boxwright.runtimes.telemetry import no_telemetry

with no_telemetry(), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # NNCF looks into packages that warn about themselves
    import nncf
    import openvino
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters

_PRODUCT = "Multiply"
_NOTE = ["boxwright", "bias_correction"]


def quantize(model: Any, source: Source, calibration: Calibration) -> tuple[Any, dict[str, Any]]:
    """Return the model with 8-bit layers, and how that was done.

    NNCF can't keep its statistics, so what `calibration.cache` keeps is the quantised model, under a key of the
    samples, the weights and everything that is asked for.

    Args:
        model: the OpenVINO model of `source`, with its own names.
        source: the torch model behind it.
        calibration: samples, and what to leave in float.

    Raises:
        UsageError: a layer to keep in float does not exist.
        ConversionError: NNCF fails.
    """
    kept = find_nodes(model, source, calibration.keep_float)
    recipe: dict[str, Any] = {
        "quantizer": f"nncf {version('nncf')}",
        "preset": "mixed",  # weights symmetric, activations not: SiLU's output reaches from -0.28 to far above 0
        "samples": len(calibration.samples),
        "samples_sha": calibration.fingerprint(),
        "keep_float": list(calibration.keep_float),
        "ignored_types": [_PRODUCT] if calibration.keep_products else [],
        "ignored_nodes": len(kept),
    }
    cached = None
    if calibration.cache is not None:
        cached = calibration.cache / f"openvino-{_key(model, recipe)}.xml"
        if cached.is_file():
            stored = openvino.Core().read_model(cached)
            return stored, recipe | {"bias_correction": stored.get_rt_info(_NOTE).astype(str)}
    names = [port.name for port in source.signature.inputs]

    def attempt(correct: bool) -> Any:
        return nncf.quantize(
            model.clone(),
            nncf.Dataset(calibration.samples, lambda sample: dict(zip(names, sample, strict=True))),
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(calibration.samples),
            ignored_scope=nncf.IgnoredScope(names=kept, types=recipe["ignored_types"], validate=False),
            advanced_parameters=AdvancedQuantizationParameters(disable_bias_correction=not correct),
        )

    try:
        with _quiet():
            try:
                quantised, correction = attempt(True), "fast"
            except ValueError as error:
                # It takes any constant that is added after a layer for that layer's bias, a scalar too, and stumbles.
                quantised, correction = attempt(False), f"none, it failed: {error}"
    except Exception as error:  # NNCF and OpenVINO raise many kinds
        raise ConversionError(f"NNCF can't quantise the model: {error}") from error
    quantised.set_rt_info(correction, _NOTE)
    if cached is not None:
        _store(quantised, cached)
    return quantised, recipe | {"bias_correction": correction}


def find_nodes(model: Any, source: Source, modules: Sequence[str]) -> list[str]:
    """Return the names of the OpenVINO nodes that stand for torch modules and all that is inside of them.

    Raises:
        UsageError: there is no such module.
    """
    if not modules:
        return []
    known = [name for name, _ in source.model.named_modules()]
    for name in modules:
        if name not in known:
            raise UsageError(f"keep_float={name!r} is no module of the model.{suggest(name, known)}")
    wanted = tuple(f"{PREFIX}{name}." for name in modules)
    names = [node.get_friendly_name() for node in model.get_ops()]
    return [name for name in names if f"{find_module(name)}.".startswith(wanted)]


def _key(model: Any, recipe: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode())
    for node in model.get_ordered_ops():
        # Names that OpenVINO makes up count on within a process, and say nothing.
        digest.update(f"{node.get_type_name()} {node.get_attributes()} {node.get_output_size()}".encode())
        if node.get_type_name() == "Constant":
            digest.update(node.get_data().tobytes())
    return digest.hexdigest()[:16]


def _store(model: Any, path: Path) -> None:
    """Write the two files under other names first: what is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.stem}.{os.getpid()}.xml")
    openvino.save_model(model, new, compress_to_fp16=False)
    new.with_suffix(".bin").replace(path.with_suffix(".bin"))
    new.replace(path)


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
