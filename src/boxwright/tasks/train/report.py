"""A run in pictures: losses and AP over the steps, and a page that holds everything."""

import base64
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from boxwright.core.log import get_logger
from boxwright.core.packages import missing_packages

_log = get_logger(__name__)
_PICTURE = "curves.png"
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}}
img{{max-width:100%}}table{{border-collapse:collapse}}
td,th{{padding:.2rem .8rem;border:1px solid #ccc;text-align:right}}
pre{{background:#f5f5f5;padding:1rem;overflow:auto}}</style></head><body>
<h1>{name}</h1>{image}
<h2>Result</h2><pre>{result}</pre>
<h2>Evaluations</h2><table><tr><th>step</th><th>AP</th><th>AP50</th><th>AP75</th></tr>{rows}</table>
<h2>Plan</h2><pre>{plan}</pre>
<h2>Settings</h2><pre>{settings}</pre></body></html>
"""


def write_report(folder: Path, result: Mapping[str, Any], plan: Sequence[str]) -> None:
    """Write `report.html`, one file with everything in it, and `curves.png` if matplotlib is installed."""
    steps, scores = _read_metrics(folder)
    image = ""
    if missing_packages(["matplotlib"]):
        _log.info("No curves: matplotlib is not installed. Run: pip install 'boxwright[plots]'")
    else:
        _draw_curves(steps, scores, folder / _PICTURE)
        data = base64.b64encode((folder / _PICTURE).read_bytes()).decode()
        image = f'<img alt="losses, learning rate and AP over the steps" src="data:image/png;base64,{data}">'
    rows = "".join(
        f"<tr><td>{s['step']:g}</td>" + "".join(f"<td>{s[k]:.4f}</td>" for k in ("AP", "AP50", "AP75")) + "</tr>"
        for s in scores
    )
    page = _PAGE.format(
        name=html.escape(folder.name),
        image=image,
        result=html.escape(json.dumps(dict(result), indent=1, ensure_ascii=False)),
        rows=rows,
        plan=html.escape("\n".join(plan)),
        settings=html.escape((folder / "args.yaml").read_text(encoding="utf-8")),
    )
    (folder / "report.html").write_text(page, encoding="utf-8")


def _read_metrics(folder: Path) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Return the metrics of steps and those of evaluations; of a step that was repeated after a resume, the last."""
    steps: dict[float, dict[str, float]] = {}
    scores: dict[float, dict[str, float]] = {}
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        try:
            values = json.loads(line)
        except ValueError:  # a line that a full disk or a power cut has torn
            continue
        (scores if "AP" in values else steps)[values["step"]] = values
    return [steps[s] for s in sorted(steps)], [scores[s] for s in sorted(scores)]


def _draw_curves(steps: list[dict[str, float]], scores: list[dict[str, float]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for name in ("total", "iou", "objectness", "classes", "l1"):
        left.plot([s["step"] for s in steps], [s[name] for s in steps], label=name, linewidth=1)
    left.set(title="loss", xlabel="step", ylim=(0, None))
    left.legend()
    middle.plot([s["step"] for s in steps], [s["lr"] for s in steps], linewidth=1)
    middle.set(title="learning rate", xlabel="step")
    for name in ("AP", "AP50", "AP75"):
        right.plot([s["step"] for s in scores], [s[name] for s in scores], marker="o", markersize=3, label=name)
    right.set(title="held-out images", xlabel="step", ylim=(0, 1))
    if scores:
        right.legend()
    figure.savefig(path, dpi=110)
