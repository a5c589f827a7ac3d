"""Run `python benchmarks/ui_thumbnails.py --data coco_val300 [--images 100000] [--folder build/ui_thumbnails]`.

How soon `boxwright ui` shows thumbnails of a large set: hard links to the images of a COCO set, labelled as those are.
Chromium measures each page from the start of its navigation: the first paint, and until all visible thumbnails are
drawn; once with labels that were never read, and once after a new start of the server. Needs chromium and
chromedriver, and a folder on the file system of the images.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.browser import Browser, open_browser
from support.server import Server

# In milliseconds from the start of the navigation: the first paint, and when all images in the window are drawn.
PAINT = """
const paint = await new Promise((resolve) => new PerformanceObserver((list) => {
  const found = list.getEntriesByName("first-contentful-paint")[0];
  if (found) resolve(found.startTime);
}).observe({ type: "paint", buffered: true }));
"""
DRAWN = """
const seen = [...document.querySelectorAll(".thumbs img")].filter((i) => i.getBoundingClientRect().top < innerHeight);
await Promise.all(seen.map((image) => image.decode()));
return [performance.now(), seen.length];
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Time until boxwright ui shows a large set.")
    parser.add_argument("--data", type=Path, required=True, help="a folder with images/ and instances.json")
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=Path("build/ui_thumbnails"), help="it is removed afterwards")
    options = parser.parse_args()
    try:
        boxes = make_set(options.data, options.folder / "set", options.images)
        print(f"{platform.platform()}, {os.cpu_count()} CPUs; {options.images} images, {boxes} boxes")
        for labels in ("never read", "read before"):
            measure(options, labels)
    finally:
        shutil.rmtree(options.folder)


def make_set(source: Path, target: Path, count: int) -> int:
    """Link each image so often that there are `count`, label all of them, and return the number of boxes."""
    content = json.loads((source / "instances.json").read_text())
    labels: dict[int, list[dict[str, object]]] = {}
    for label in content["annotations"]:
        labels.setdefault(label["image_id"], []).append(label)
    (target / "images").mkdir(parents=True)
    images, annotations = [], []
    for at in range(count):
        image = content["images"][at % len(content["images"])]
        name = f"{at:06d}.jpg"
        os.link(source / "images" / image["file_name"], target / "images" / name)
        images.append(image | {"id": at + 1, "file_name": name})
        annotations += [label | {"id": 0, "image_id": at + 1} for label in labels.get(image["id"], [])]
    for at, label in enumerate(annotations, start=1):
        label["id"] = at
    (target / "instances.json").write_text(
        json.dumps({"images": images, "annotations": annotations, "categories": content["categories"]})
    )
    return len(annotations)


def measure(options: argparse.Namespace, labels: str) -> None:
    """Start a server and a browser, and print how long the pages take."""
    env = {"BOXWRIGHT_CACHE": str(options.folder.resolve() / "cache")}
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(options.folder / "set", log=Path(folder) / "log", verb="ui", env=env) as server,
        open_browser(Path(folder)) as browser,
    ):
        browser.emulate(1280, 800)
        browser.open(server.page)
        last = -(-options.images // 60)
        for name, path in (("first page", "/data/0"), ("last page", f"/data/0?page={last}"), ("again", "/data/0")):
            show(browser, f"labels {labels}, {name}", f"{server.url}{path}")


def show(browser: Browser, name: str, address: str) -> None:
    """Open a page and print its times; a page that says that it reads the labels is timed too."""
    browser.open(address)
    waited = "Reading the labels" in browser.text("body")
    if waited:
        paint = browser.run(f"{PAINT} return paint;")
        print(f"{name:36} first paint {paint:6.0f} ms, says that the labels are being read")
        start = perf_counter()
        while not browser.driver.find_elements("css selector", ".thumbs"):
            sleep(0.1)
        print(f"{name:36} labels read after {perf_counter() - start:.1f} s more")
    drawn, count = browser.run(DRAWN)
    paint = browser.run(f"{PAINT} return paint;")
    print(f"{name:36} first paint {paint:6.0f} ms, {count} visible thumbnails {drawn:6.0f} ms")


if __name__ == "__main__":
    main()
