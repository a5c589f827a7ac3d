"""python benchmarks/int8_accuracy.py [--weights yolox_nano.pth] [--data coco_val300] [--calibration images/]

Our int8 quantisers beside those of the libraries, with the same layers left in float: AP with its interval and latency.

The columns: AP; how much AP is lost against the original, with the 95 % bounds of a paired bootstrap; how much AP is
lost against our row of the same runtime; the latency, all rows timed in turns, and its ratio to our row (above 1: the
library is faster). The torchao row needs torchao, which is not a dependency. `--also` adds artifact folders of an older
version, each beside the OpenVINO row. Without arguments it reads the official nano and its images from the folder
BOXWRIGHT_TEST_DATA (default: `shared` beside the checkout). Results are explained in docs/explanation/quantisers.md.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import torch

from boxwright.core import catalogue
from boxwright.core.cpu import read_cpu
from boxwright.core.errors import ConversionError
from boxwright.core.packages import missing_packages
from boxwright.core.signature import Array, Port, Signature
from boxwright.core.timing import hardware_line
from boxwright.core.types import Precision
from boxwright.optimize.accuracy import measure_drop
from boxwright.optimize.process import Limits, open_nursery
from boxwright.optimize.timing import RaceRules, race
from boxwright.runtimes.artifact import read_artifact
from boxwright.runtimes.base import Choice, Graph, Tuning
from boxwright.runtimes.calibrate import Calibration
from boxwright.runtimes.fold import fold_copy
from boxwright.runtimes.onnx_export import export_onnx
from boxwright.runtimes.onnx_layers import find_layers as find_onnx_layers
from boxwright.runtimes.onnxruntime_ import MODEL_FILE, optimise_file
from boxwright.runtimes.program import export_program, open_original
from boxwright.runtimes.quantized import choose_layers, find_layers
from boxwright.runtimes.source import PREFIX, Source
from boxwright.tasks.optimize import DetectorCase, OptimizeConfig, make_case

ROOT = Path(os.environ.get("BOXWRIGHT_TEST_DATA", Path(__file__).resolve().parents[2] / "shared"))
OPENVINO = Choice(runtime="openvino", precision=Precision.INT8)
NNCF = Choice(runtime="openvino", precision=Precision.INT8, mode="nncf")
QLINEAR = Choice(runtime="onnxruntime", precision=Precision.INT8, mode="qlinear")
COMPILE = Choice(runtime="compile", precision=Precision.INT8)
Samples = Sequence[tuple[Array, ...]]


@dataclass(frozen=True)
class Converted:
    """A converted model, ours or a library's."""

    name: str
    folder: Path
    choice: Choice
    signature: Signature

    def open(self, tuning: Tuning) -> Graph:
        """Return it loaded."""
        runtime = catalogue.load("runtime", self.choice.runtime)()
        return runtime.load(self.folder, self.choice, self.signature, tuning)  # type: ignore[no-any-return]


def quantize_with_onnxruntime(source: Source, samples: Samples, folder: Path, method: str) -> None:
    """Write the model that ONNX Runtime's static quantiser makes, with our layers."""
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc] # no types
        def __init__(self) -> None:
            self._samples = iter(samples)

        def get_next(self) -> dict[str, Array] | None:
            sample = next(self._samples, None)
            return None if sample is None else {source.signature.inputs[0].name: sample[0]}

    with TemporaryDirectory() as scratch:
        exported, fused, quantised = (Path(scratch) / f"{name}.onnx" for name in ("exported", "fused", "quantised"))
        export_onnx(source, exported)
        optimise_file(exported, fused, keep_activations=True)
        ours = choose_layers(fold_copy(source), source.example)
        heavy = find_onnx_layers(onnx.load(fused).graph)
        quantization.quantize_static(
            fused,
            quantised,
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=["Conv", "MatMul", "Gemm"],
            nodes_to_exclude=[name for name, layer in heavy.items() if PREFIX + layer.module not in ours],
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            calibrate_method=quantization.CalibrationMethod[method],
        )
        optimise_file(quantised, folder / MODEL_FILE)


def quantize_with_torchao(source: Source, samples: Samples, folder: Path) -> int | None:
    """Write the package of torchao's PT2E, with our layers; return the batch size if only one goes."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    from boxwright.runtimes.compiled import compile_program

    module = fold_copy(source)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    ours = choose_layers(module, source.example)
    for name in find_layers(module, depthwise=True):
        if name not in ours:
            quantizer.set_module_name_qconfig(name, None)
    prepared = prepare_pt2e(export_program(source, module).module(), quantizer)
    with torch.no_grad():
        for sample in samples:
            prepared(*(torch.as_tensor(a) for a in sample))
    converted, batch = convert_pt2e(prepared), None
    try:
        program = export_program(source, converted)
    except ConversionError:
        batch = len(source.example[0])
        program = export_program(replace(source, signature=fix_batch(source.signature, batch)), converted)
    compile_program(program, folder)
    return batch


def fix_batch(signature: Signature, batch: int) -> Signature:
    """Return a detector's signature with a fixed batch size."""

    def fix(ports: tuple[Port, ...]) -> tuple[Port, ...]:
        return tuple(replace(port, shape=(batch, *port.shape[1:])) for port in ports)

    return replace(signature, inputs=fix(signature.inputs), outputs=fix(signature.outputs))


def convert_all(source: Source, samples: Samples, some: Samples, folder: Path) -> Iterator[list[Converted]]:
    """Yield our model of each runtime, followed by those of the libraries."""
    calibration = Calibration(samples=samples, cache=folder / "cache")

    def make(name: str, choice: Choice, write: Callable[[Path], Any]) -> Converted:
        target = folder / f"{len(list(folder.iterdir()))}"
        target.mkdir()
        made = write(target)
        batch = made.get("batch") if isinstance(made, dict) else made
        print(f"converted: {name}", flush=True)
        return Converted(name, target, choice, fix_batch(source.signature, batch) if batch else source.signature)

    def ours(name: str, choice: Choice) -> Converted:
        runtime = catalogue.load("runtime", choice.runtime)()
        return make(name, choice, lambda target: runtime.convert(source, choice, target, calibration))

    yield [ours("openvino_int8 (NNCF, our layers)", OPENVINO), ours("openvino_int8_nncf (NNCF's layers)", NNCF)]
    rows = [ours("onnxruntime_int8_qlinear", QLINEAR)]
    for method, used in (("MinMax", samples), ("Percentile", some), ("Entropy", some)):
        name = f"  quantize_static, {method}, {len(used)} images"
        rows.append(
            make(name, QLINEAR, lambda target, m=method, u=used: quantize_with_onnxruntime(source, u, target, m))
        )
    yield rows
    rows = [ours("compile_int8", COMPILE)]
    if missing_packages(["torchao"]):
        print("torchao is not installed: pip install --no-deps torchao")
    else:
        rows.append(make("  torchao PT2E", COMPILE, lambda target: quantize_with_torchao(source, samples, target)))
    yield rows


def time_all(case: DetectorCase, rows: Sequence[Converted], runs: int) -> dict[str, float]:
    """Return the median latency of each model in milliseconds, all timed in turns."""
    with open_nursery() as nursery:
        found = race(
            nursery,
            {row.name: row.open for row in rows},
            case.timing_inputs(),
            rules=RaceRules(runs=runs, early_stop=None),
            limits=Limits(threads=read_cpu().usable_cores),
            logs=nursery.folder,
        )
        return {name: latency.timing.median_ms for name, latency in found.items() if latency.timing is not None}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, default=ROOT / "weights/yolox_nano/yolox_nano.pth")
    parser.add_argument("--data", type=Path, default=ROOT / "data/coco_val300")
    parser.add_argument("--calibration", type=Path, default=ROOT / "data/coco_train_mini/images")
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--some", type=int, default=32, help="images for calibrators that hold all values in memory")
    parser.add_argument("--limit", type=int, help="score only the first N images")
    parser.add_argument("--runs", type=int, default=100, help="timed runs of each model; 0 for no latency")
    parser.add_argument("--no-ap", action="store_true", help="time only")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="artifact folders beside the OpenVINO row")
    options = parser.parse_args(arguments)
    if not options.weights.exists():
        print(f"There are no weights at {options.weights}; give --weights, --data and --calibration.")
        return
    config = OptimizeConfig(
        model=options.weights,
        data=options.data,
        calibration=options.calibration,
        calibration_images=options.samples,
        limit=options.limit,
    )
    case, _ = make_case(config)
    assert case.scorer is not None
    source, samples = case.source(), list(case.calibration())
    print(f"{hardware_line()}; {len(samples)} calibration images", flush=True)
    with TemporaryDirectory() as folder:
        groups = list(convert_all(source, samples, samples[: options.some], Path(folder)))
        for path in options.also:
            old = read_artifact(path)
            groups[0].append(Converted(f"  {path.name}", path, old.choice, old.signature))
        rows = [row for group in groups for row in group]
        latency = time_all(case, rows, options.runs) if options.runs else {}
        original = None if options.no_ap else case.scorer.score(open_original(source))
        if original is not None:
            print(f"original: AP {original.value:.4f}")
        print(f"{'model':44} {'AP':>7} {'lost':>25} {'lost against ours':>25} {'ms':>7} {'ratio':>6}")
        for group in groups:
            first = None
            for row in group:
                line = f"{row.name:44}"
                if original is not None:
                    graph = row.open(Tuning())
                    score = case.scorer.score(graph)
                    graph.close()
                    first = first or score
                    drops = [measure_drop(case.scorer, other, score) for other in (original, first)]
                    line += f" {score.value:7.4f}"
                    line += "".join(f"  {d.point:+.4f} [{d.low:+.4f}, {d.high:+.4f}]" for d in drops)
                if row.name in latency and group[0].name in latency:
                    line += f" {latency[row.name]:7.2f} {latency[group[0].name] / latency[row.name]:5.2f}x"
                print(line, flush=True)


if __name__ == "__main__":
    main()
