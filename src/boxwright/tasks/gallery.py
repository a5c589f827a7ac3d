"""Pictures of errors: a crop around each, with the truth and the detection drawn over it."""

import base64
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core.boxes import FloatArray, xywh_to_xyxy
from boxwright.core.errors import DataError
from boxwright.data.shards import read_encoded
from boxwright.report.page import Html, element
from boxwright.vision.decode import decode_image
from boxwright.vision.letterbox import shrink

if TYPE_CHECKING:  # they need the evaluation extra
    from boxwright.evaluation.analysis import Analysis
    from boxwright.evaluation.errors import Verdicts

PER_KIND = 24
PER_CLASS = 4
SIDE_PX = 260
LARGEST = 3_800_000
"""How many bytes all pictures of a page may have."""

_QUALITY = 78
_ROOM = 0.5
_SMALLEST_PX = 64
_NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picture:
    """One error to show.

    Attributes:
        kind: the error.
        image_id: of the image.
        said: the caption.
        classes: ids of the classes that it concerns.
        found: the wrong detection, as corners; None for a missed object.
        truth: the truth boxes that it concerns, as corners.
    """

    kind: str
    image_id: int
    said: str
    classes: tuple[int, ...]
    found: FloatArray | None = None
    truth: tuple[FloatArray, ...] = ()


def worst_errors(verdicts: "Verdicts") -> list[Picture]:
    """Return the errors to look at: of each kind the best-scored detections or the largest missed objects.

    At most 24 of a kind, at most 4 of them of one class.
    """
    from boxwright.evaluation.errors import HIT, KINDS

    v = verdicts
    kinds: list[list[Picture]] = []
    for index, kind in enumerate(KINDS):
        if index != HIT:
            some = np.flatnonzero((v.kind == index) & ~v.ignored)
            order = some[np.argsort(-v.scores[some], kind="stable")]
            kinds.append([_wrong(v, kind, at) for at in _varied(order, v.class_ids)])
    some = np.flatnonzero(v.missed)
    order = some[np.argsort(-v.truth_boxes_xywh[some, 2:].prod(axis=1), kind="stable")]
    kinds.append([_missed(v, at) for at in _varied(order, v.truth_class_ids)])
    # In turns, so that no kind is left out where the pictures are too many for a page.
    return [one for group in itertools.zip_longest(*kinds) for one in group if one is not None]


def suspect_pictures(analysis: "Analysis", most: int = 40) -> list[Picture]:
    """Return the most probable faults of the labels."""
    v, pictures = analysis.verdicts, []
    for suspect in analysis.suspects[:most]:
        truths = [at for at in (suspect.truth, suspect.other) if at != _NONE]
        labelled = ", ".join(v.names[v.truth_class_ids[at]] for at in truths)
        found = None if suspect.detection == _NONE else xywh_to_xyxy(v.boxes_xywh[suspect.detection])
        classes = {int(v.truth_class_ids[at]) for at in truths}
        said = f"labelled {labelled}" if labelled else "no label"
        if suspect.detection != _NONE:
            classes.add(int(v.class_ids[suspect.detection]))
            said += f"; found {v.names[v.class_ids[suspect.detection]]} {v.scores[suspect.detection]:.2f}"
        pictures.append(
            Picture(
                kind=suspect.fault,
                image_id=int(v.image_ids[suspect.image]),
                said=said,
                classes=tuple(sorted(classes)),
                found=found,
                truth=tuple(xywh_to_xyxy(v.truth_boxes_xywh[at]) for at in truths),
            )
        )
    return pictures


def draw_gallery(
    pictures: Sequence[Picture],
    names: Sequence[str],
    path_of: Callable[[int], Path],
    truths_of: Callable[[int], NDArray[Any]],
    *,
    largest: int = LARGEST,
) -> tuple[Html, int]:
    """Return the pictures with two filters, and how many bytes they have; what exceeds `largest` is left out.

    Args:
        pictures: what to show, the most important first.
        names: class names.
        path_of: the file of an image id.
        truths_of: the corners of all truth boxes of an image id.
        largest: how many bytes the pictures may have.
    """
    figures: dict[int, Html] = {}
    size = 0
    # Each file is read once, but the most important pictures come first.
    for wave in _waves(len(pictures)):
        for image_id, group in itertools.groupby(sorted(wave, key=lambda i: pictures[i].image_id), _image_of(pictures)):
            try:
                path = path_of(image_id)
                image = decode_image(read_encoded(path), str(path))
            except DataError:  # it was readable when it was scored
                continue
            for at in group:
                figure = _draw(pictures[at], image, path_of(image_id).name, truths_of(image_id))
                length = len(figure.encode())
                if size + length <= largest:
                    figures[at] = figure
                    size += length
    shown = [pictures[at] for at in sorted(figures)]
    kinds = list(dict.fromkeys(picture.kind for picture in shown))
    classes = sorted({class_id for picture in shown for class_id in picture.classes}, key=lambda i: names[i])
    controls = element(
        "p",
        _choice("Error", "kind", [(kind, kind) for kind in kinds]),
        _choice("Class", "class", [(str(i), names[i]) for i in classes]),
        class_="controls",
    )
    grid = element("div", *(figures[at] for at in sorted(figures)), class_="gallery")
    return element("div", controls, grid, class_="filtered"), size


def embed(image: NDArray[Any], side_px: int) -> str:
    """Return an image as the address of a JPEG that is inside the page, fitted into a square if it is larger."""
    data = cv2.imencode(".jpg", shrink(image, side_px), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1].tobytes()
    return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"


def rectangle(kind: str, box: FloatArray, tip: str = "") -> Html:
    """Return a box, as corners, as a rectangle of a class of the page."""
    x1, y1, x2, y2 = (float(v) for v in box)
    where = {"x": f"{x1:.1f}", "y": f"{y1:.1f}", "width": f"{max(x2 - x1, 0):.1f}", "height": f"{max(y2 - y1, 0):.1f}"}
    return element("rect", *([element("title", tip)] if tip else []), class_=kind, **where)


# Colours that stand out from most pictures, in both themes.
STYLE = """
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 240px), 1fr)); gap: 1rem; }
figure { margin: 0; } figure svg { width: 100%; height: 220px; background: var(--raised); border-radius: 4px; }
figcaption { font-size: .85rem; overflow-wrap: anywhere; } figure[hidden] { display: none; }
figure rect { fill: none; stroke-width: 2.5; vector-effect: non-scaling-stroke; }
rect.found { stroke: #ff5a5f; } rect.truth { stroke: #35e07f; stroke-dasharray: 7 4; }
figure rect.other { stroke: #35e07f; stroke-width: 1; stroke-dasharray: 2 3; }
"""

SCRIPT = """
for (const part of document.querySelectorAll(".filtered")) {
  const choices = part.querySelectorAll("select");
  const show = () => {
    const [kind, name] = [...choices].map((choice) => choice.value);
    for (const figure of part.querySelectorAll("figure")) {
      const classes = figure.dataset.classes.split(" ");
      figure.hidden = (kind && figure.dataset.kind !== kind) || (name && !classes.includes(name));
    }
  };
  choices.forEach((choice) => choice.addEventListener("change", show));
  show();  // a browser may have kept the choice of an earlier visit
}
"""


def _waves(count: int) -> Iterator[range]:
    return (range(first, min(first + 40, count)) for first in range(0, count, 40))


def _image_of(pictures: Sequence[Picture]) -> Callable[[int], int]:
    return lambda at: pictures[at].image_id


def _varied(order: NDArray[np.int64], classes: NDArray[np.int64]) -> list[int]:
    """Return the first of an order, without too many of one class."""
    seen: Counter[int] = Counter()
    chosen = []
    for at in order.tolist():
        if seen[classes[at]] < PER_CLASS:
            seen[classes[at]] += 1
            chosen.append(at)
        if len(chosen) == PER_KIND:
            break
    return chosen


def _wrong(v: "Verdicts", kind: str, at: int) -> Picture:
    name, truth = v.names[v.class_ids[at]], int(v.truth[at])
    said = f"{name} {v.scores[at]:.2f}"
    classes = {int(v.class_ids[at])}
    if truth != _NONE:
        classes.add(int(v.truth_class_ids[truth]))
        said += f", is {v.names[v.truth_class_ids[truth]]}" if kind == "class" else ""
    return Picture(
        kind=kind,
        image_id=int(v.image_ids[v.image[at]]),
        said=said,
        classes=tuple(sorted(classes)),
        found=xywh_to_xyxy(v.boxes_xywh[at]),
        truth=() if truth == _NONE else (xywh_to_xyxy(v.truth_boxes_xywh[truth]),),
    )


def _missed(v: "Verdicts", at: int) -> Picture:
    class_id = int(v.truth_class_ids[at])
    return Picture(
        kind="missed",
        image_id=int(v.image_ids[v.truth_image[at]]),
        said=v.names[class_id],
        classes=(class_id,),
        truth=(xywh_to_xyxy(v.truth_boxes_xywh[at]),),
    )


def _draw(picture: Picture, image: NDArray[np.uint8], file: str, truths: NDArray[Any]) -> Html:
    boxes = [*picture.truth, *([] if picture.found is None else [picture.found])]
    corners = np.array(boxes)
    low, high = corners[:, :2].min(axis=0), corners[:, 2:].max(axis=0)
    room = np.maximum((high - low) * _ROOM, _SMALLEST_PX / 2)
    height, width = image.shape[:2]
    x1, y1 = np.floor((low - room).clip(0, [width - 1, height - 1])).astype(int).tolist()
    x2, y2 = np.ceil((high + room).clip([x1 + 1, y1 + 1], [width, height])).astype(int).tolist()
    part: NDArray[Any] = image[y1:y2, x1:x2]
    shown = element("image", href=embed(part, SIDE_PX), x=x1, y=y1, width=x2 - x1, height=y2 - y1)
    inside = [b for b in truths if b[0] < x2 and b[2] > x1 and b[1] < y2 and b[3] > y1]
    drawn = [
        *(rectangle("other", box) for box in inside if not any(np.abs(box - one).max() < 0.6 for one in picture.truth)),
        *(rectangle("truth", box) for box in picture.truth),
        *([] if picture.found is None else [rectangle("found", picture.found)]),
    ]
    view = f"{x1} {y1} {x2 - x1} {y2 - y1}"
    label = f"{picture.kind}: {picture.said}, {file}"
    svg = element("svg", shown, *drawn, viewBox=view, role="img", aria_label=label)
    caption = element("figcaption", element("b", picture.kind), f" {picture.said} · {file}")
    return element(
        "figure", svg, caption, data_kind=picture.kind, data_classes=" ".join(str(c) for c in picture.classes)
    )


def _choice(label: str, name: str, values: Iterable[tuple[str, str]]) -> Html:
    options = [element("option", "all", value="")]
    options += [element("option", said, value=value) for value, said in values]
    return element("label", f"{label} ", element("select", *options, name=name, autocomplete="off"))
