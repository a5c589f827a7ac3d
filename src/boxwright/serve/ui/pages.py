"""The pages of `boxwright ui`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from boxwright.data.check.report import RULES
from boxwright.data.records import Records
from boxwright.data.stats import SIZE_LIMITS_PX
from boxwright.report.page import Html, element, figures, make_page, section, table
from boxwright.report.plots import Series, line_plot
from boxwright.serve.ui.found import LabelledSet, Page, Run
from boxwright.tasks.train.pictures import LEGEND, find_pictures
from boxwright.tasks.train.report import draw_curves, read_metrics, thin

PER_PAGE = 60
SAMPLES = 4
_RELOAD_S, _WAITING_S = 5, 1  # until a page loads itself again: of what is running, and of a set that is being read
MOST_LINES = 6
SIZES = ("small", "medium", "large")
TABS = (("data", "Data"), ("runs", "Runs"), ("errors", "Errors"), ("try", "Try"))

STYLE = """
nav { display: flex; gap: 1.2rem; border-bottom: 1px solid var(--line); padding-bottom: .4rem; flex-wrap: wrap; }
nav a { text-decoration: none; padding: .2rem 0; } nav a[aria-current] { font-weight: 600; color: var(--ink);
  border-bottom: 2px solid var(--c0); }
.thumbs { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: .6rem; }
.thumbs img { width: 100%; height: 120px; object-fit: contain; background: var(--raised); border-radius: 4px; }
.thumbs span { font-size: .78rem; overflow-wrap: anywhere; display: block; }
.samples { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 240px), 1fr)); gap: .6rem; }
.samples img { width: 100%; min-height: 40px; border-radius: 4px; }
.picture { max-width: 100%; max-height: 75vh; } form { display: flex; flex-wrap: wrap;
  align-items: center; gap: .5rem 1rem; margin: .8rem 0; } form .wide { flex-basis: 100%; }
form label { display: flex; align-items: center; gap: .4rem; margin: 0; max-width: 100%; } form select { min-width: 0; }
"""

# Arrow keys go where the links "previous" and "next" go, and Escape goes back.
SCRIPT = """
addEventListener("keydown", (event) => {
  if (event.target.closest("select, input")) return;
  const rel = { ArrowLeft: "prev", ArrowRight: "next", Escape: "up" }[event.key];
  document.querySelector(`a[rel=${rel}]`)?.click();
});
// A page of something that grows loads itself again, unless a choice was made in it that would be lost.
let chosen = false;
addEventListener("input", () => { chosen = true; });
const watch = () => {
  const wait = document.querySelector("[data-reload]")?.dataset.reload;
  if (wait) setTimeout(() => chosen || location.reload(), 1000 * wait);
};
watch();
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which images of a set are shown: those with a box of this class and size, and with this fault."""

    class_id: int | None = None
    size: str = ""
    fault: str = ""

    def query(self, **more: int) -> str:
        """Return the filters and these values as the end of an address."""
        values = {"class": self.class_id, "size": self.size, "fault": self.fault, **more}
        return "?" + urlencode({name: value for name, value in values.items() if value not in (None, "")})


def frame(tab: str, title: str, *parts: str, reload_s: float = 0) -> str:
    """Return a page with the tabs above it, which loads itself again if `reload_s` is not 0."""
    links = [
        element("a", name, href=f"/{path}", **({"aria_current": "page"} if path == tab else {})) for path, name in TABS
    ]
    again = element("span", hidden="hidden", data_reload=reload_s) if reload_s else Html("")
    return make_page(title, element("nav", *links), *parts, again, style=STYLE, script=SCRIPT)


def data_page(sets: Sequence[LabelledSet]) -> str:
    """Return the list of labelled sets."""
    rows = [(element("a", one.name, href=f"/data/{at}"),) for at, one in enumerate(sets)]
    none = "No labelled set is in these folders. Name one: boxwright ui FOLDER"
    return frame("data", "Labelled sets", table(("set",), rows) if rows else none)


def waiting_page(one: LabelledSet) -> str:
    """Return what is shown while the labels of a set are read."""
    return frame("data", one.name, "Reading the labels …", reload_s=_WAITING_S)


def set_page(at: int, one: LabelledSet, filters: Filters, *, page: int) -> str:
    """Return thumbnails of the images of a set that pass the filters; pages count from 1."""
    records = one.records
    chosen = choose(one, filters)
    pages = max(-(-len(chosen) // PER_PAGE), 1)
    page = min(max(page, 1), pages)
    thumbs = [
        element(
            "a",
            element("img", src=f"/thumb/{at}/{i}", alt=records.relative_path(i), loading="lazy"),
            element("span", records.relative_path(i)),
            href=f"/image/{at}/{i}{filters.query()}",
        )
        for i in chosen[(page - 1) * PER_PAGE : page * PER_PAGE].tolist()
    ]
    return frame(
        "data",
        one.name,
        _filters(one, filters),
        f"{len(chosen)} of {len(records)} images, page {page} of {pages}",
        _jump(filters, page, pages) if pages > 1 else "",
        element("div", *thumbs, class_="thumbs"),
        reload_s=_RELOAD_S if one.checking else 0,
    )


def _jump(filters: Filters, page: int, pages: int) -> Html:
    kept = [
        element("input", type="hidden", name=name, value=value)
        for name, value in (("class", _text(filters.class_id)), ("size", filters.size), ("fault", filters.fault))
        if value
    ]
    number = element("input", type="number", name="page", min=1, max=pages, value=page)
    turns = element("span", *_turns(page - 1, pages, lambda to: filters.query(page=to + 1)))
    return element("form", *kept, turns, element("label", "Page ", number), element("button", "Go"), class_="controls")


def choose(one: LabelledSet, filters: Filters) -> NDArray[np.int64]:
    """Return the images that pass the filters, in order."""
    records, class_id, size, fault = one.records, filters.class_id, filters.size, filters.fault
    kept = np.ones(len(records.class_ids), np.bool_)
    if class_id is not None:
        kept &= records.class_ids == class_id
    if size in SIZES:
        small, large = SIZE_LIMITS_PX
        side = np.sqrt(np.nan_to_num(records.areas).clip(0))
        kept &= np.digitize(side, [small, large]) == SIZES.index(size)
    owner = np.repeat(np.arange(len(records)), np.diff(records.offsets))
    chosen = np.unique(owner[kept]) if class_id is not None or size in SIZES else np.arange(len(records))
    if fault and one.report is not None:
        wrong = [f.index for f in one.report.findings if f.rule == fault and f.index is not None]
        chosen = np.intersect1d(chosen, np.array(wrong, np.int64))
    return chosen


def image_page(at: int, one: LabelledSet, index: int, filters: Filters) -> str:
    """Return one image with its boxes; the arrow keys go through the images that pass the filters."""
    records = one.records
    chosen = choose(one, filters)
    place = int(np.searchsorted(chosen, index))
    if place == len(chosen) or chosen[place] != index:
        filters, chosen, place = Filters(), np.arange(len(records)), index
    classes, boxes = records.class_ids_of(index).tolist(), records.boxes(index)
    rows = [
        (records.names[c], *(f"{v:.1f}" for v in box), "crowd" if crowd else "")
        for c, box, crowd in zip(classes, boxes.tolist(), records.crowd_of(index).tolist(), strict=True)
    ]
    turns = _turns(place, len(chosen), lambda to: f"/image/{at}/{chosen[to]}{filters.query()}")
    back = f"/data/{at}{filters.query(page=place // PER_PAGE + 1)}"
    where = f"image {place + 1} of {len(chosen)}"
    found = [] if one.report is None else [f for f in one.report.findings if f.index == index]
    samples = [
        element("img", src=f"/augmented/{at}/{index}/{epoch}", alt=f"sample of epoch {epoch}", loading="lazy")
        for epoch in range(SAMPLES)
    ]
    alt = f"{records.relative_path(index)} with {len(rows)} boxes"
    return frame(
        "data",
        records.relative_path(index),
        element("p", element("a", "↑ images", rel="up", href=back), "  ", *turns, where, class_="controls"),
        element("img", class_="picture", src=f"/picture/{at}/{index}", alt=alt),
        element("ul", *(element("li", f"{f.rule}: {f.message}") for f in found)),
        element("details", element("summary", "As training sees it"), element("div", *samples, class_="samples")),
        section("Boxes", table(("class", "x1", "y1", "x2", "y2", ""), rows)),
    )


def runs_page(runs: Sequence[Run], chosen: Collection[str]) -> str:
    """Return the list of runs, and those with the chosen keys side by side: AP, loss, and settings that differ."""
    rows: list[tuple[str, ...]] = []
    aps: list[Series] = []
    losses: list[Series] = []
    compared: list[Run] = []
    for run in runs:
        steps, scores = read_metrics(run.folder)
        best = max((s["AP"] for s in scores), default=None)
        tick = {"checked": "checked"} if run.key in chosen else {}
        box = element("input", type="checkbox", name="run", value=run.key, aria_label=f"compare {run.name}", **tick)
        link = element("a", run.name, href=f"/runs/{run.key}")
        state = "running" if run.live else "ended" if (run.folder / "result.json").exists() else "stopped"
        last = f"{steps[-1]['step']:g}" if steps else "0"
        rows.append((box, link, state, last, "–" if best is None else f"{best:.4f}"))
        if run.key in chosen and len(compared) < MOST_LINES:
            compared.append(run)
            aps.append(_series(run.name, scores, "AP", dots=True))
            losses.append(_series(run.name, thin(steps), "total"))
    if not rows:
        return frame("runs", "Runs", "No run is in these folders. boxwright train makes one in runs/train.")
    listed = table(("", "run", "state", "steps", "best AP"), rows, texts=3)
    plots = [
        element("div", element("h3", title), line_plot(lines, x_label="step"))
        for title, lines in (("AP over the steps", aps), ("Loss over the steps", losses))
    ]
    return frame(
        "runs",
        "Runs",
        element("form", listed, element("button", "Compare the chosen runs"), action="/runs"),
        section("Compared", element("div", *plots, class_="columns halves")) if compared else "",
        _differences(compared),
        reload_s=_RELOAD_S if any(run.live for run in runs) else 0,
    )


def _series(name: str, rows: Sequence[Mapping[str, float]], key: str, *, dots: bool = False) -> Series:
    return Series(name=name, x=[row["step"] for row in rows], y=[row[key] for row in rows], dots=dots)


def _differences(runs: Sequence[Run]) -> str:
    """Return the settings in which runs differ."""
    settings = [run.settings() for run in runs]
    names = list(dict.fromkeys(name for values in settings for name in values))
    rows = [(name, *(values.get(name, "–") for values in settings)) for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    if len(runs) < 2 or not rows:
        return ""
    heads = ("setting", *(run.name for run in runs))
    return section("Settings that differ", element("div", table(heads, rows, texts=len(heads)), id="settings"))


def run_page(run: Run, step: int | None = None) -> str:
    """Return the curves of a run as they are now, and the pictures of an evaluation: of this step, or of the last."""
    steps, scores = read_metrics(run.folder)
    best = max((s["AP"] for s in scores), default=None)
    head = [("state", "running" if run.live else "not running"), ("steps", f"{steps[-1]['step']:g}" if steps else "0")]
    head.append(("best AP", "–" if best is None else f"{best:.4f}"))
    reload_s = _RELOAD_S if run.live else 0
    return frame("runs", run.name, figures(head), draw_curves(steps, scores), _sheet(run, step), reload_s=reload_s)


def _sheet(run: Run, wanted: int | None) -> str:
    found = list(find_pictures(run.folder))
    if not found:
        return ""
    at = found.index(wanted) if wanted in found else len(found) - 1
    turns = _turns(at, len(found), lambda to: f"?step={found[to]}#pictures")
    address = f"/runs/{run.key}/pictures/{found[at]}"
    image = element("img", class_="picture", src=address, alt=f"held-out images at step {found[at]}")
    shown = section(
        "Pictures",
        f"Step {found[at]} ({at + 1} of {len(found)}). {LEGEND}",
        element("p", *turns, class_="controls"),
        element("a", image, href=address),
    )
    return element("div", shown, id="pictures")


def errors_page(pages: Sequence[Page]) -> str:
    """Return the list of the pages that other commands wrote."""
    rows = [
        (one.kind, element("a", one.name, href=f"/report/{one.key}", target="_blank", rel="noopener"), one.said)
        for one in pages
    ]
    none = "No report is in these folders. boxwright eval MODEL --data SET --report writes one."
    return frame("errors", "Errors and comparisons", table(("kind", "folder", ""), rows, texts=2) if rows else none)


def try_page() -> str:
    """Return what the tab shows without a model."""
    return frame("try", "Try a model", "Start with a model to try it here: boxwright ui FOLDER --model yolox_nano")


def _turns(at: int, count: int, address: Callable[[int], str]) -> list[str]:
    """Return links to the one before and the one after, where the arrow keys go."""
    links: list[str] = []
    for rel, to, said in (("prev", at - 1, "← previous"), ("next", at + 1, "next →")):
        if 0 <= to < count:
            links += [element("a", said, rel=rel, href=address(to)), "  "]
    return links


def _filters(one: LabelledSet, filters: Filters) -> Html:
    records: Records = one.records
    parts = [
        _select("class", "Class", [(str(i), name) for i, name in enumerate(records.names)], _text(filters.class_id)),
        _select("size", "Size", [(name, name) for name in SIZES], filters.size),
    ]
    if one.report is not None:
        count = dict.fromkeys(RULES, 0)
        for finding in one.report.findings:
            count[finding.rule] += 1
        found = [(rule, f"{rule} ({n})") for rule, n in count.items() if n]
        parts.append(_select("fault", "Fault", found, filters.fault))
    elif one.checking:
        parts.append(element("span", f"Checking: {one.checked[0]} of {one.checked[1] or len(records)} images"))
    else:
        parts.append(element("a", "Look for faults", href="?check=1"))
    return element("form", *parts, element("button", "Show"), class_="controls")


def _select(name: str, label: str, values: Sequence[tuple[str, str]], chosen: str) -> Html:
    options = [element("option", "any", value="")]
    for value, said in values:
        options.append(element("option", said, value=value, **({"selected": "selected"} if value == chosen else {})))
    return element("label", f"{label} ", element("select", *options, name=name))


def _text(class_id: int | None) -> str:
    return "" if class_id is None else str(class_id)
