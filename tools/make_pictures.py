"""Make the pictures of the documentation; pages in Chromium: python tools/make_pictures.py [--demo FOLDER].

FOLDER is what `boxwright demo --out FOLDER` has written; without it the demo is run, which takes minutes. The pictures
go to docs/images. Chromium and its driver are needed (apt-get install chromium chromium-driver).
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.browser import Browser, open_browser  # noqa: E402
from support.server import Server  # noqa: E402

IMAGES = ROOT / "docs" / "images"
WIDTH = 1100
_QUALITY = 80


def photograph(browser: Browser, name: str, height: int) -> None:
    """Write what the window shows to docs/images."""
    shot = cv2.imdecode(np.frombuffer(browser.driver.get_screenshot_as_png(), np.uint8), cv2.IMREAD_COLOR)
    write_picture(name, shot[:height])


def show_page(browser: Browser, page: Path, name: str, height: int, anchor: str = "") -> None:
    """Photograph a page that a command has written, from a heading on."""
    browser.open(page.resolve().as_uri())
    if anchor:
        script = "[...document.querySelectorAll('h2')].find((h) => h.textContent === given[0]).scrollIntoView();"
        browser.run(script, anchor)
    photograph(browser, name, height)


def show_server(browser: Browser, demo: Path, scratch: Path, height: int) -> None:
    """Photograph the server's page with a scene."""
    with Server(demo / "optimize" / "best", log=scratch / "serve") as server:
        browser.open(server.url)
        browser.wait(lambda: browser.text("#model-0"))
        picture = sorted((demo / "scenes" / "images").iterdir())[1]
        browser.find("#files").send_keys(str(picture))
        browser.wait(lambda: browser.is_shown("#times"))
        photograph(browser, "serve", height)


def show_ui(browser: Browser, demo: Path, scratch: Path, height: int) -> None:
    """Photograph the labelled set in the interface for sets and runs."""
    with Server(demo, log=scratch / "ui", verb="ui") as server:
        browser.open(server.page)
        browser.find("td a").click()
        browser.wait(_thumbnails(browser))
        browser.run("document.body.innerHTML = document.body.innerHTML.replaceAll(given[0], '')", f"{demo}/")
        browser.wait(_thumbnails(browser))
        photograph(browser, "ui", height)


def _thumbnails(browser: Browser) -> Callable[[], object]:
    """Return the condition that the first images are there; those below the window are not loaded."""
    script = (
        "const first = [...document.images].slice(0, 8); return first.length && first.every((i) => i.naturalWidth);"
    )
    return lambda: browser.run(script)


def draw_batch(scenes: Path, scratch: Path) -> None:
    """Write a batch as training sees it."""
    boxwright("data", "preview", scenes, "--size", 192, "--batch", 6, "--out", scratch / "preview")
    write_picture("preview", read_picture(scratch / "preview" / "batch_0.jpg"))


def read_picture(path: Path) -> NDArray[np.uint8]:
    """Return the pixels of a file."""
    return cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)


def write_picture(name: str, pixels: NDArray[Any]) -> None:
    """Write a picture to docs/images."""
    assert cv2.imwrite(str(IMAGES / f"{name}.webp"), pixels, [cv2.IMWRITE_WEBP_QUALITY, _QUALITY])


def boxwright(*words: object) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "boxwright", *map(str, words), "--quiet"], check=True, stdout=sys.stderr)


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        demo = (args.demo or scratch / "demo").resolve()
        if args.demo is None:
            boxwright("demo", "--out", demo, "--no-open")
        os.chdir(demo)  # the pages show paths as they were given
        weights, scenes = "train/weights/best.safetensors", "scenes"
        boxwright("eval", weights, "--data", scenes, "--report", "--out", scratch / "eval")
        boxwright("compare", weights, "optimize/best", "--data", scenes, "--out", scratch / "compare")
        draw_batch(demo / scenes, scratch)
        with open_browser(scratch) as browser:
            browser.emulate(WIDTH, 900)
            show_page(browser, demo / "train" / "report.html", "train", 820)
            show_page(browser, demo / "optimize" / "report.html", "optimize", 820)
            show_page(browser, scratch / "eval" / "report.html", "evaluate", 900)
            show_page(browser, scratch / "compare" / "compare.html", "compare", 820)
            show_server(browser, demo, scratch, 760)
            show_ui(browser, demo, scratch, 700)


if __name__ == "__main__":
    main()
