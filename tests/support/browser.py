"""Debian's Chromium without a screen, driven by selenium, without the network."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

_PROGRAMS = ("chromium", "chromedriver")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
)  # fmt: skip
_WAIT_S = 30


def need_browser() -> None:
    """Skip the test where there is no browser; fail it in CI, which installs one."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        reason = f"needs {' and '.join(missing)} (apt-get install chromium chromium-driver)"
        if os.environ.get("CI", "").lower() in {"1", "true"}:
            pytest.fail(f"CI must have a browser: {reason}")
        pytest.skip(reason)


class Browser:
    """A browser window; `driver` is selenium's."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Load a page."""
        self.driver.get(address)

    def run(self, script: str, *values: Any) -> Any:
        """Run JavaScript and return what it returns, also of a promise."""
        code = f"const done = arguments[arguments.length - 1]; (async (...given) => {{ {script} }})(...arguments)"
        text = f"{code}.then((value) => done([value]), (error) => done(String(error.stack || error)));"
        found = self.driver.execute_async_script(text, *values)
        assert isinstance(found, list), found
        return found[0]

    def find(self, selector: str) -> Any:
        """Return the first element that matches."""
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        """Return the text of an element, visible or not."""
        return str(self.driver.execute_script("return document.querySelector(arguments[0]).textContent", selector))

    def is_shown(self, selector: str) -> bool:
        """Return whether an element is displayed."""
        return bool(self.find(selector).is_displayed())

    def wait(self, condition: Callable[[], Any]) -> Any:
        """Wait until a condition is true and return its value."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, _WAIT_S, poll_frequency=0.05).until(lambda _: condition())

    def press(self, *keys: str) -> None:
        """Press keys together, outside any field."""
        from selenium.webdriver import ActionChains

        chain = ActionChains(self.driver)
        for key in keys:
            chain.key_down(key)
        for key in reversed(keys):
            chain.key_up(key)
        chain.perform()

    def before_each_page(self, script: str) -> Callable[[], None]:
        """Run JavaScript before the scripts of each page that is loaded; return what ends that."""
        added = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        return lambda: self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)

    def hosts(self) -> set[str]:
        """Return the hosts of all requests since the last call; "" for those that the browser answers itself."""
        found = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                address = urlsplit(message["params"]["request"]["url"])
                found.add(address.netloc if address.scheme in ("http", "https", "ws", "wss") else "")
        return found

    def complaints(self) -> list[str]:
        """Return errors and warnings of the console since the last call, refused sources among them."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def emulate(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window and the system's theme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Yield a browser with a new profile in a folder."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    profile = f"--user-data-dir={folder / 'profile'}"
    for flag in (*_FLAGS, profile, "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    options.add_experimental_option("prefs", {"download.default_directory": str(folder)})
    driver = webdriver.Chrome(options, Service(str(shutil.which("chromedriver"))))  # named: selenium downloads none
    try:
        driver.set_script_timeout(_WAIT_S)
        yield Browser(driver)
    finally:
        driver.quit()
