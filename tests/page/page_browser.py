"""A real browser for tests of the report page, and what tests ask it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="the tests of the page in a browser need the package selenium")

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webelement import WebElement

from memopt.page.render import page

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


def need_browser() -> None:
    """Skip the module that calls this where there is no browser."""
    missing = [str(path) for path in (CHROMIUM, DRIVER) if not path.exists()]
    if missing:
        pytest.skip(f"the tests of the page in a browser need {' and '.join(missing)}", allow_module_level=True)


class Browser:
    """One browser that shows one page at a time."""

    def __init__(self, driver: webdriver.Chrome, folder: Path) -> None:
        self.driver = driver
        self.folder = folder

    def open(self, data: dict[str, Any], *, width: int = 1280, scripts: bool = True, **media: str) -> None:
        """Show the page of ``data``, ``width`` pixels wide; ``media`` are features such as ``prefers_color_scheme="dark"``."""
        self.resize(width)
        self.cdp("Emulation.setScriptExecutionDisabled", value=not scripts)
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self.cdp("Emulation.setEmulatedMedia", media="", features=features)
        path = self.folder / "report.html"
        path.write_text(page(data), encoding="utf-8")
        self.driver.get(path.as_uri())

    def resize(self, width: int) -> None:
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)

    def cdp(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)

    def one(self, css: str) -> WebElement:
        return self.driver.find_element("css selector", css)

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements("css selector", css)

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, css: str) -> str:
        return str(self.one(css).text)

    def messages(self) -> list[str]:
        """What the page wrote to the console since the last call, of whatever level."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]


@contextmanager
def running(folder: Path) -> Iterator[Browser]:
    """A browser with nothing from before; its files lie in ``folder``."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield Browser(driver, folder)
    finally:
        driver.quit()
