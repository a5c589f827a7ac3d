"""The page of `boxwright serve` in a real browser."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from support.browser import Browser, need_browser, open_browser
from support.scenes import save_scene
from support.server import TOKEN, Server
from support.toy import save_toy_onnx, toy_spec

from boxwright import Predictor
from boxwright.detector.postprocess import suppress

pytest.importorskip("uvicorn")
pytest.importorskip("selenium")
pytestmark = pytest.mark.xdist_group("browser")  # one browser and one server for all of them

MARKUP = ('<img src=x onerror="window.ran = 1">', "<b>green</b>", "&lt;blue")
MAX_BODY = 200_000
# Counts requests; a test may answer them itself with `window.answer(real, address, options)`.
SPY = """
const real = window.fetch;
window.asked = [];
window.underWay = window.mostUnderWay = 0;
window.fetch = async (address, options) => {
  window.asked.push(String(address));
  window.mostUnderWay = Math.max(window.mostUnderWay, ++window.underWay);
  try {
    return await (window.answer ?? ((ask, ...given) => ask(...given)))(real, address, options);
  } finally {
    window.underWay -= 1;
  }
};
navigator.clipboard.writeText = async (text) => { window.copied = text; };
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_browser()
    return save_toy_onnx(tmp_path_factory.mktemp("models") / "toy.onnx", spec=toy_spec())


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serve")
    other = save_toy_onnx(folder / "other.onnx", spec=toy_spec(names=MARKUP))
    words = (model, other, "--workers", 1, "--max-body", MAX_BODY)
    with Server(*words, log=folder / "log", env={"BOXWRIGHT_TOKEN": TOKEN}) as one:
        yield one


@pytest.fixture(scope="module")
def window(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as browser:
        browser.before_each_page(SPY)
        browser.open(server.url)
        browser.wait(lambda: browser.is_shown("#token-dialog"))
        browser.find("#token-input").send_keys(TOKEN + "\n")
        browser.wait(lambda: browser.text("#model-0") == "toyother")
        yield browser


@pytest.fixture
def page(window: Browser, server: Server) -> Iterator[Browser]:
    """The page, loaded anew; at the end no request has left this machine, and nothing was refused or failed."""
    window.emulate(1280, 800)
    window.complaints()
    window.open(server.url)
    window.wait(lambda: window.text("#model-0") == "toyother")
    yield window
    assert window.hosts() <= {"", f"127.0.0.1:{server.port}"}
    assert [text for text in window.complaints() if "Failed to load resource" not in text] == []


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """Three red squares, two of them neighbours, and a blue one."""
    return save_scene(tmp_path / "scene.png", ("red", 1, 1), ("red", 4, 4), ("red", 5, 4), ("blue", 6, 6))


def give(page: Browser, *files: Path) -> None:
    """Choose pictures, and wait until the first one is predicted."""
    page.find("#files").send_keys("\n".join(map(str, files)))
    page.wait(lambda: "ms" in page.text("#pane-0 .time"))


def copied(page: Browser) -> Any:
    page.press("j")
    return json.loads(page.wait(lambda: page.run("return window.copied")))


def slide(page: Browser, slider: str, value: float) -> None:
    page.run(
        "const [id, value] = given; const slider = document.getElementById(id);"
        "slider.value = value; slider.dispatchEvent(new Event('input'))",
        slider,
        value,
    )


def count(page: Browser) -> int:
    return int(page.text("#pane-0 .count").split()[0])


def test_the_boxes_are_those_of_the_predictor(page: Browser, model: Path, scene: Path) -> None:
    with Predictor.load(model) as predictor:
        expected = predictor(scene)
    give(page, scene)
    assert len(expected) == 4
    assert copied(page) == {"source": "scene.png", "size_hw": [64, 64], "detections": expected.to_list()}
    assert page.text("#pane-0 .count") == "4 boxes"
    assert page.find("#pane-0 .view").get_attribute("aria-label") == "scene.png: 4 boxes by toy"


def test_sliders_and_classes_act_without_a_request(page: Browser, scene: Path) -> None:
    give(page, scene)
    asked = page.run("return window.asked.length")
    every = copied(page)["detections"]
    slide(page, "score", 1.0)
    assert count(page) == sum(one["score"] >= 1 for one in every)
    slide(page, "score", 0.01)
    slide(page, "overlap", 1.0)
    assert count(page) >= 4
    slide(page, "score", 0.25)
    assert page.text("#classes") == "red3blue1"
    page.find("#classes input").click()
    assert {one["class"] for one in copied(page)["detections"]} == {"blue"}
    page.find("#none").click()
    assert count(page) == 0
    page.find("#all").click()
    assert count(page) == 4
    assert page.run("return window.asked.length") == asked


def test_overlapping_boxes_are_left_out_as_the_predictor_does(page: Browser) -> None:
    chance = np.random.default_rng(0)
    corner = chance.uniform(0, 80, (300, 2))
    boxes = np.round(np.concatenate((corner, corner + chance.uniform(5, 60, (300, 2))), axis=1), 3)
    scores, ids = np.round(chance.uniform(0.01, 1, 300), 6), chance.integers(0, 4, 300)
    detections = [
        {"class": str(i), "class_id": int(i), "score": float(s), "box_xyxy": b.tolist()}
        for b, s, i in zip(boxes, scores, ids, strict=True)
    ]
    found = page.run(
        "const { prepare, select } = await import('/boxes.js'); const prepared = prepare(given[0]);"
        "return given[1].map(([score, overlap]) => select(prepared, score, overlap).map((box) => box.score))",
        detections,
        settings := [(0.01, 0.45), (0.3, 0.45), (0.3, 0.7), (0.5, 0.0), (0.01, 1.0)],
    )
    for (score, overlap), kept in zip(settings, found, strict=True):
        some = scores >= score
        expected = suppress(boxes[some].astype(np.float32), scores[some].astype(np.float32), ids[some], overlap)
        assert kept == scores[some][expected].tolist()


def test_two_models_are_compared_with_linked_zoom(page: Browser, scene: Path) -> None:
    give(page, scene)
    page.press("c")
    page.wait(lambda: "ms" in page.text("#pane-1 .time"))
    assert [page.text(f"#pane-{at} .name") for at in (0, 1)] == ["toy", "other"]
    assert [page.text("#pane-0 .count"), page.text("#pane-1 .count")] == ["4 boxes", "4 boxes"]
    pixels = "return [0, 1].map((at) => document.querySelector(`#pane-${at} canvas`).toDataURL())"
    first = page.run(pixels)
    page.find("#zoom-in").click()
    second = page.run(pixels)
    assert page.text("#zoom") == "150 %"
    assert first[0] == first[1] != second[0] == second[1]
    assert [one["model"] for one in copied(page)] == ["toy", "other"]
    assert page.run("return window.mostUnderWay") == 1  # two at once would slow each other down


def test_markup_in_names_is_text(page: Browser, scene: Path, tmp_path: Path) -> None:
    page.run("document.querySelector('#model-0').value = 'other'")
    page.run("document.querySelector('#model-0').dispatchEvent(new Event('change'))")
    give(page, scene.rename(tmp_path / "<i>scene.png"))
    assert page.text("#classes .name") == MARKUP[0]
    assert page.run("return document.querySelectorAll('aside img, aside b, main i').length") == 0
    assert page.run("return window.ran ?? null") is None


def test_errors_are_sentences(page: Browser, scene: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)
    cv2.imwrite(str(tmp_path / "large.png"), noise)
    assert (tmp_path / "large.png").stat().st_size > MAX_BODY
    (tmp_path / "broken.png").write_bytes(b"no picture")

    def expect(words: str, file: Path) -> None:
        page.find("#files").send_keys(str(file))
        page.wait(lambda: page.is_shown("#error") and words in page.text("#error p"))

    expect("--max-body", tmp_path / "large.png")
    expect("broken.png", tmp_path / "broken.png")
    page.run("window.answer = async () => { throw new TypeError('network') }")
    expect("does not answer", scene)
    page.run("window.answer = async () => new Response('<html>', { status: 418 })")
    expect("418", scene)
    page.run("window.answer = null")
    give(page, scene)
    assert not page.is_shown("#error")


def test_a_busy_server_is_asked_again(page: Browser, scene: Path) -> None:
    page.run(
        "let left = 2; window.answer = (ask, ...given) =>"
        " left-- > 0 ? new Response('{}', { status: 429, headers: { 'Retry-After': '0.2' } }) : ask(...given)"
    )
    give(page, scene)
    assert page.run("return window.asked.filter((address) => address.startsWith('predict')).length") == 3
    assert count(page) == 4


def test_a_wrong_token_is_asked_for_again(page: Browser, server: Server) -> None:
    page.run("sessionStorage.setItem('boxwright-token', 'wrong')")
    page.open(server.url)
    page.wait(lambda: page.is_shown("#token-dialog"))
    assert "does not accept" in page.text("#token-text")
    page.find("#token-input").send_keys(TOKEN + "\n")
    page.wait(lambda: page.text("#model-0") == "toyother")


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_pictures_are_dropped_and_pasted(page: Browser, scene: Path, kind: str) -> None:
    page.run(
        "const data = new DataTransfer(); const bytes = Uint8Array.from(atob(given[0]), (c) => c.charCodeAt(0));"
        "data.items.add(new File([bytes], 'given.png', { type: 'image/png' }));"
        "window.dispatchEvent(given[1] === 'drop' ? new DragEvent('drop', { dataTransfer: data })"
        " : new ClipboardEvent('paste', { clipboardData: data }))",
        base64.b64encode(scene.read_bytes()).decode(),
        kind,
    )
    page.wait(lambda: "ms" in page.text("#pane-0 .time"))
    assert copied(page)["source"] == "given.png"


def test_several_pictures_are_stepped_through_with_the_keyboard(page: Browser, scene: Path, tmp_path: Path) -> None:
    give(page, scene, save_scene(tmp_path / "second.png", ("green", 2, 2)))
    page.press("\ue014")  # right
    page.wait(lambda: page.text("#pane-0 .count") == "1 box")
    page.press("\ue012")
    page.wait(lambda: page.text("#pane-0 .count") == "4 boxes")
    assert page.run("return window.asked.filter((address) => address.startsWith('predict')).length") == 2


def play(page: Browser, done: Callable[[], bool]) -> None:
    page.wait(lambda: page.text("#pane-0 .name") == "toy" and done())
    assert page.run("return window.mostUnderWay") == 1


def frames(page: Browser) -> int:
    return int(page.run("return window.asked.filter((address) => address.startsWith('predict')).length"))


def test_the_webcam_sends_one_frame_at_a_time_until_it_is_stopped(page: Browser) -> None:
    page.find("#camera").click()
    play(page, lambda: frames(page) > 3)
    assert copied(page)["source"] == "webcam"
    page.find("#camera").click()
    assert page.run("return document.querySelector('video').srcObject") is None
    assert not page.is_shown("#player")


def test_a_video_file_plays_to_its_end(page: Browser, tmp_path: Path) -> None:
    size = (96, 64)
    writer = cv2.VideoWriter(str(tmp_path / "clip.webm"), cv2.VideoWriter.fourcc(*"VP80"), 10, size)
    assert writer.isOpened()
    for number in range(10):
        image = np.full((64, 96, 3), 114, np.uint8)
        image[16:32, 8 * number : 8 * number + 16] = (0, 0, 255)
        writer.write(image)
    writer.release()
    page.find("#film-file").send_keys(str(tmp_path / "clip.webm"))
    play(page, lambda: frames(page) > 2)
    page.wait(lambda: page.run("return document.querySelector('video').ended"))
    page.press(" ")  # plays again
    page.wait(lambda: not page.run("return document.querySelector('video').ended"))
    assert copied(page)["source"] == "clip.webm"


def test_every_control_has_a_name_and_the_text_contrast(page: Browser, scene: Path) -> None:
    give(page, scene)
    nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = {"button", "slider", "checkbox", "combobox", "textbox", "image", "listitem"}
    controls = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles - {"listitem"}]
    assert len(controls) > 15
    assert [node for node in controls if not node.get("name", {}).get("value", "").strip()] == []
    for dark in (False, True):
        page.emulate(1280, 800, dark=dark)
        page.wait(
            lambda dark=dark: page.run("return document.documentElement.dataset.theme") == ["light", "dark"][dark]
        )
        assert page.run(CONTRAST) == []


# The elements with text whose contrast to their background is below 4.5.
CONTRAST = """
const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
const part = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
const under = (element) => {
  const colour = parse(getComputedStyle(element).backgroundColor);
  return (colour[3] ?? 1) > 0 || !element.parentElement ? colour : under(element.parentElement);
};
const shows = (element) => element.checkVisibility({ opacityProperty: true });
const hasText = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
const texts = [...document.querySelectorAll("body *")].filter((element) => shows(element) && hasText(element));
return texts.filter((element) => {
  const [a, b] = [light(parse(getComputedStyle(element).color)), light(under(element))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
}).map((element) => element.outerHTML);
"""


def test_a_narrow_screen_needs_no_sideways_scrolling(page: Browser, scene: Path) -> None:
    page.emulate(360, 740)
    give(page, scene)
    page.press("c")
    page.wait(lambda: "ms" in page.text("#pane-1 .time"))
    assert page.run("return document.documentElement.scrollWidth") <= 360
