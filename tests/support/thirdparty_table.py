"""What becomes of each network of others: trained in one and two processes, converted, and loaded in a fresh process.

The figures of `docs/reference/thirdparty.md`: PYTHONPATH=tests python -m support.thirdparty_table FILE [NAME …]
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from support.networks_of_others import NETWORKS, Network
from support.thirdparty import find_paths, offer
from torch import nn

from boxwright import InferenceOptimizer, TorchNano
from boxwright.core.errors import BoxwrightError
from boxwright.core.structure import flatten
from boxwright.runtimes.artifact import read_artifact
from boxwright.runtimes.base import shorten
from boxwright.runtimes.parity import BOUNDS, distance

METHODS = {
    "jit": ("trace", "jit"),
    "OpenVINO": ("trace", "openvino"),
    "ONNX Runtime": ("trace", "onnxruntime"),
    "int8": ("quantize", "int8"),
    "int8 OpenVINO": ("quantize", "openvino"),
    "int8 ONNX Runtime": ("quantize", "onnxruntime"),
}
_CHILD = """
import json, sys
import torch
from boxwright import InferenceOptimizer
from boxwright.core.structure import flatten
torch.set_num_threads(1)
same = {}
for folder in sys.argv[1:]:
    kept = torch.load(folder + ".pt")
    with InferenceOptimizer.load(folder) as model:
        found = [flatten(model(**call))[0] for call in kept["calls"]]
    pairs = zip(sum(found, []), sum(kept["outputs"], []), strict=True)
    same[folder] = all(torch.equal(a, b) for a, b in pairs)
print(json.dumps(same))
"""


class Batches:
    """A loader of some batches."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


@dataclass(frozen=True)
class Outcome:
    """What became of one conversion.

    Attributes:
        works: "any size", "fixed size" where only the example's shapes run, "fixed sides" where only the batch may have
            another size, or "no".
        reason: why it is not "any size".
    """

    works: str
    reason: str = ""


def convert(network: Network, method: str, folder: Path) -> Outcome:
    """Convert a network, compare both shapes with the original, and keep artifact, calls and outputs in the folder."""
    model, (how, accelerator), data = network.make(), METHODS[method], Batches(network.calls)
    try:
        if how == "trace":
            fast = InferenceOptimizer.trace(model, None, accelerator, training_data=data, folder=folder, thread_num=1)
        else:
            fast = InferenceOptimizer.quantize(model, data, accelerator, folder=folder, thread_num=1)
    except BoxwrightError as error:
        return Outcome("no", str(error))
    artifact = read_artifact(folder)
    ports = fast.signature.inputs
    fits = [all(p.accepts_shape(call[p.name].shape) for p in ports) for call in network.calls]
    works = "any size" if all(fits) else "fixed sides" if fast.signature.free_batch else "fixed size"
    calls = network.calls if all(fits) else network.calls[:1]
    outputs = []
    constants = {"use_cache": False} if hasattr(model, "generate") else {}
    for call in calls:
        with torch.inference_mode():
            expected = flatten(model(**call, **constants))[0]
        outputs.append(flatten(fast(**call))[0])
        found = distance([t.numpy() for t in outputs[-1]], [t.numpy() for t in expected[: len(outputs[-1])]])
        if not found <= BOUNDS[artifact.choice.precision]:
            return Outcome("no", f"outputs are {found:.3g} away from the original's")
    fast.close()
    torch.save({"calls": list(calls), "outputs": outputs}, f"{folder}.pt")
    return Outcome(works, "" if works == "any size" else str(artifact.recipe.get("note", "")))


def load_elsewhere(folders: Sequence[Path]) -> dict[str, bool]:
    """Return whether artifacts give the same outputs in a fresh process, which knows none of the packages."""
    if not folders:
        return {}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *map(str, folders)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AssertionError(done.stderr)
    answer: dict[str, bool] = json.loads(done.stdout.splitlines()[-1])
    return answer


class Training(TorchNano):
    """Trains each network for two steps, and returns for each how the loss fell, or why it can't be trained."""

    def train(self, names: list[str]) -> dict[str, str]:  # type: ignore[override] # a function of the user's own
        found = {}
        for name in names:
            network = NETWORKS[name]
            try:
                found[name] = self._train(network)
            except Exception as error:  # noqa: BLE001 a row of the table
                found[name] = f"{type(error).__name__}: {error}"
        return found

    def _train(self, network: Network) -> str:
        made = network.make().train()
        for part in made.modules():
            if isinstance(part, nn.modules.dropout._DropoutNd):
                part.p = 0.0
        optimizer = torch.optim.SGD(made.parameters(), lr=1e-3)
        model, optimizer = self.setup(made, optimizer)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = network.loss(model, network.calls[1])
            self.backward(loss)
            optimizer.step()
            losses.append(float(loss))
        return "yes" if losses[-1] < losses[0] else f"the loss does not fall: {losses}"


def train(names: Sequence[str], processes: int) -> dict[str, str]:
    """Return what became of the training of some networks."""
    offer()
    # RT-DETR's encoder has heads that its outputs do not depend on.
    nano = Training(num_processes=processes, find_unused_parameters=processes > 1)
    trained: dict[str, str] = nano.train(list(names))
    return trained


def measure(names: Sequence[str], methods: Sequence[str], folder: Path) -> dict[str, dict[str, Outcome]]:
    """Return the outcome of each network and method."""
    found = {}
    for name in names:
        row, kept = {}, {}
        for method in methods:
            place = folder / f"{name} {method}".replace(" ", "_")
            row[method] = convert(NETWORKS[name], method, place)
            if row[method].works != "no":
                kept[method] = place
        same = load_elsewhere(list(kept.values()))
        for method, place in kept.items():
            if not same[str(place)]:
                row[method] = Outcome("no", "another output in a fresh process")
        found[name] = row
    return found


def render(values: dict[str, Any]) -> str:
    """Return the page's table and the notes below it."""
    columns = ["trains in 1", "trains in 2", *METHODS]
    lines = [f"| network | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    notes: list[str] = []
    for name in NETWORKS:
        cells = []
        for column in columns:
            outcome = values.get(name, {}).get(column)
            cell = "not measured" if outcome is None else str(outcome["works"])
            if outcome is not None and outcome["reason"] not in ("", "yes"):
                reason = shorten(re.sub(r"'/\S*/", "'", str(outcome["reason"])), 300)  # no folders of this machine
                if reason not in notes:
                    notes.append(reason)
                cell += f" [{notes.index(reason) + 1}]"
            cells.append(cell)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{i}. {note}" for i, note in enumerate(notes, 1))]) + "\n"


def main(target: Path, names: Sequence[str]) -> None:
    """Measure row by row, those not known yet, and write what is known after each."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ["PYTHONPATH"] = os.pathsep.join([*find_paths(), str(Path(__file__).parent.parent)])
    values: dict[str, Any] = json.loads(target.read_text()) if target.is_file() else {}
    for name in names or NETWORKS:
        if name not in values:
            with tempfile.TemporaryDirectory() as folder:
                row = measure([name], list(METHODS), Path(folder))[name]
            values[name] = {method: asdict(outcome) for method, outcome in row.items()}
            target.write_text(json.dumps(values, indent=1) + "\n")
            print(name, {k: v.works for k, v in row.items()}, flush=True)
    for processes in (1, 2):
        for name, outcome in train(list(names or NETWORKS), processes).items():
            values[name][f"trains in {processes}"] = asdict(Outcome(outcome if outcome == "yes" else "no", outcome))
        target.write_text(json.dumps(values, indent=1) + "\n")
    print(render(values))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
