"""`boxwright ui` in a real browser."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browser, need_browser, open_browser
from support.scenes import save_labelled_set, save_scene
from support.server import Server
from support.toy import save_toy_onnx, toy_spec

pytest.importorskip("uvicorn")
pytest.importorskip("selenium")
pytestmark = pytest.mark.xdist_group("browser")

MARKUP = "<img src=x onerror=document.title='ran'>"
SCENES = [[("red", 1, 1)], [("green", 2, 2), ("blue", 5, 5)], [], [("red", 0, 7), ("blue", 3, 3)]]
STEP = {"total": 5.0, "iou": 2.0, "objectness": 2.0, "classes": 1.0, "l1": 0.0, "lr": 0.01}


def save_run(folder: Path, aps: list[float]) -> None:
    folder.mkdir(parents=True)
    rows = [{"step": at * 10, **STEP} for at in range(len(aps))]
    rows += [{"step": at * 10, "AP": ap, "AP50": ap, "AP75": ap} for at, ap in enumerate(aps)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set with markup in names and a box over the edge, a finished and a running run, and a page with a script."""
    need_browser()
    top = tmp_path_factory.mktemp("work")
    data = save_labelled_set(top / "data", SCENES)
    content = json.loads((data / "instances.json").read_text())
    content["categories"][0]["name"] = MARKUP
    content["images"][0]["file_name"] = "<b>1.png"
    (data / "images" / "0001.png").rename(data / "images" / "<b>1.png")
    content["annotations"][-1]["bbox"] = [60, 60, 20, 20]
    (data / "instances.json").write_text(json.dumps(content))
    save_run(top / "runs" / "ended", [0.1, 0.4])
    (top / "runs" / "ended" / "result.json").write_text("{}")
    for step in (0, 10):
        save_scene(top / "runs" / "ended" / "pictures" / f"step_{step:08d}.jpg", ("red", step // 10, 0))
    save_run(top / "runs" / "live", [0.2])
    (top / "evaluated").mkdir()
    (top / "evaluated" / "report.json").write_text(json.dumps({"AP": 0.5, "errors": {}}))
    script = "fetch('/data').then(() => 'read', () => 'refused').then((what) => { document.body.dataset.ran = what; });"
    (top / "evaluated" / "report.html").write_text(f"<title>{MARKUP}</title><body><script>{script}</script>")
    save_toy_onnx(top / "toy.onnx", spec=toy_spec())
    return top


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("log") / "log"
    with Server(folder, "--model", folder / "toy.onnx", log=log, verb="ui") as one:
        yield one


@pytest.fixture(scope="module")
def window(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def page(window: Browser, server: Server) -> Iterator[Browser]:
    """The first page; at the end no request has left this machine, and no markup of a name has run."""
    window.emulate(1280, 800)
    window.open(server.page)
    yield window
    assert window.hosts() <= {"", f"127.0.0.1:{server.port}"}
    assert window.run("return document.title") != "ran"


def follow(page: Browser, said: str) -> None:
    page.driver.find_element("partial link text", said).click()


def test_only_who_has_the_token_gets_in_and_it_does_not_stay_in_the_address(server: Server, window: Browser) -> None:
    assert server.get("/data").status == 401
    assert server.get("/thumb/0/0").status == 401
    assert server.get("/?token=wrong").status == 401
    assert server.get("/data", cookie=f"boxwright_ui_{server.port}=wrong").status == 401
    window.open(server.page)
    assert window.run("return location.href") == f"{server.url}/data"
    assert window.run("return document.cookie") == ""


def test_a_set_shows_its_thumbnails_and_filters_by_class_and_size(page: Browser) -> None:
    follow(page, "data")
    page.wait(lambda: page.run("return [...document.images].filter((i) => i.naturalWidth > 0).length") == 4)
    assert page.text(".thumbs span") == "<b>1.png"
    assert "4 of 4 images" in page.text("body")
    page.run("document.querySelector('select[name=class]').value = '0'; document.querySelector('form').submit()")
    page.wait(lambda: "2 of 4 images" in page.text("body"))
    assert page.run("return document.querySelector('select[name=class]').selectedOptions[0].text") == MARKUP
    page.run("document.querySelector('select[name=size]').value = 'large'; document.querySelector('form').submit()")
    page.wait(lambda: "0 of 4 images" in page.text("body"))


def test_the_linters_faults_can_be_jumped_to(page: Browser) -> None:
    follow(page, "data")
    follow(page, "Look for faults")

    def has_faults() -> bool:
        page.driver.refresh()
        return bool(page.run("return document.querySelector('select[name=fault]') !== null"))

    page.wait(has_faults)
    page.run(
        "document.querySelector('select[name=fault]').value = 'box-over-edge';document.querySelector('form').submit()"
    )
    page.wait(lambda: "1 of 4 images" in page.text("body"))
    page.find(".thumbs a").click()
    page.wait(lambda: "box-over-edge:" in page.text("body"))
    assert page.text("h1") == "0004.png"


def test_arrow_keys_go_through_the_images(page: Browser, server: Server) -> None:
    page.open(f"{server.url}/image/0/1")
    assert [row.text for row in page.driver.find_elements("css selector", "td.text")] == ["green", "blue"]
    page.press("\ue014")
    page.wait(lambda: page.text("h1") == "0003.png")
    page.press("\ue012")
    page.wait(lambda: page.text("h1") == "0002.png")


def test_arrow_keys_stay_among_the_images_of_a_filter(page: Browser, server: Server) -> None:
    page.open(f"{server.url}/data/0?class=0")
    page.find(".thumbs a").click()
    page.wait(lambda: page.text("h1") == "<b>1.png")
    assert "image 1 of 2" in page.text("body")
    page.press("\ue014")
    page.wait(lambda: page.text("h1") == "0004.png")
    assert not page.driver.find_elements("css selector", "a[rel=next]")
    page.press("\ue00c")
    page.wait(lambda: "2 of 4 images" in page.text("body"))
    assert page.run("return document.querySelector('select[name=class]').value") == "0"


def test_an_image_is_shown_as_training_sees_it(page: Browser, server: Server) -> None:
    page.open(f"{server.url}/image/0/1")
    page.find("summary").click()
    page.wait(
        lambda: page.run("return [...document.querySelectorAll('.samples img')].every((i) => i.naturalWidth > 0)")
    )
    assert page.run("return document.querySelectorAll('.samples img').length") == 4


def test_runs_are_compared_and_a_running_one_grows(page: Browser, server: Server, folder: Path) -> None:
    follow(page, "Runs")
    page.wait(lambda: page.text("h1") == "Runs")
    states = {row.text.split()[0].rpartition("/")[2]: row.text.split()[1:] for row in rows(page)}
    assert states == {"live": ["running", "0", "0.2000"], "ended": ["ended", "10", "0.4000"]}
    assert page.run("return document.querySelectorAll('svg path').length") == 4  # AP and loss of each
    follow(page, "live")
    page.wait(lambda: "best AP" in page.text("body"))
    with (folder / "runs" / "live" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 20, "AP": 0.75, "AP50": 0.8, "AP75": 0.7}) + "\n")
    page.wait(lambda: "0.7500" in page.text("body"))  # it reloads itself


def test_a_page_that_reloads_itself_keeps_what_was_chosen(page: Browser) -> None:
    follow(page, "Runs")
    page.wait(lambda: page.text("h1") == "Runs")
    page.run("document.querySelector('[data-reload]').dataset.reload = '0.1'; document.body.dataset.old = 'yes';")
    page.find("input[type=checkbox]").click()
    page.run("watch(); await new Promise((resolve) => setTimeout(resolve, 500));")
    assert page.run("return document.body.dataset.old") == "yes"


def test_the_settings_in_which_runs_differ_are_shown(page: Browser, folder: Path) -> None:
    for name, rate in (("ended", 0.1), ("live", "<i>0.2")):
        (folder / "runs" / name / "args.yaml").write_text(f"model: yolox_nano\nlr: {rate}\n")
    follow(page, "Runs")
    page.wait(lambda: page.text("h1") == "Runs")
    cells = {cell.text for cell in page.driver.find_elements("css selector", "#settings td")}
    assert cells == {"lr", "0.1", "<i>0.2"}


def test_arrow_keys_go_through_the_pictures_of_a_run(page: Browser) -> None:
    follow(page, "Runs")
    page.wait(lambda: page.text("h1") == "Runs")
    follow(page, "ended")
    for key, said in (("", "Step 10 (2 of 2)."), ("\ue012", "Step 0 (1 of 2)."), ("\ue014", "Step 10 (2 of 2).")):
        if key:
            page.press(key)
        page.wait(lambda said=said: page.driver.find_elements("id", "pictures") and said in page.text("#pictures"))
        page.wait(lambda: page.run("return document.querySelector('img.picture').naturalWidth > 0"))


def rows(page: Browser) -> list:
    return page.driver.find_elements("css selector", "tbody tr")


def test_a_report_is_shown_but_its_scripts_reach_nothing(page: Browser, server: Server) -> None:
    follow(page, "Errors")
    page.wait(lambda: page.text("h1") == "Errors and comparisons")
    assert "evaluation" in rows(page)[0].text
    assert "AP 0.5000" in rows(page)[0].text
    page.open(page.find("tbody a").get_attribute("href"))
    assert page.wait(lambda: page.run("return document.body.dataset.ran")) == "refused"
    assert page.run("return document.title") == MARKUP
    page.complaints()


def test_a_model_can_be_tried(page: Browser) -> None:
    follow(page, "Try")
    page.wait(lambda: page.run("return document.querySelector('#model-0') !== null"))
    page.wait(lambda: page.text("#model-0") == "toy")


def test_narrow_windows_need_no_sideways_scrolling(page: Browser, server: Server) -> None:
    page.emulate(360, 700, dark=True)
    for path in ("/data", "/data/0", "/image/0/1", "/runs", "/errors"):
        page.open(f"{server.url}{path}")
        assert page.run("return document.documentElement.scrollWidth") <= 360, path


def test_what_is_not_there_is_said(server: Server, window: Browser) -> None:
    window.open(server.page)
    cookie = "; ".join(f"{c['name']}={c['value']}" for c in window.driver.get_cookies())
    for path in ("/data/9", "/image/0/99", "/report/0", "/nothing", "/data/0/../../etc"):
        assert server.get(path, cookie=cookie).status == 404, path
    assert server.request("POST", "/data", b"", {"cookie": cookie}).status == 405
