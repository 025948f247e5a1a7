"""A page in headless Chromium: what it draws, says and asks for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

INSTALL = (
    "the page's tests need Chromium and its driver; on Debian and Ubuntu: "
    "apt-get install --no-install-recommends chromium chromium-driver"
)
PATIENCE = 60
"""Seconds in which even a busy machine draws a page."""

LOCAL = ("data:", "blob:")
"""Addresses that lead nowhere but into the page itself."""

# Of each trace in sight, how many of its shapes have a size.
DRAWN = """
const shapes = ".point path, path.point, path.js-line, image";
const groups = ".barlayer .trace, .scatterlayer .trace, .heatmaplayer .hm";
return Object.fromEntries([...document.querySelectorAll("figure")].map((figure) => [
  figure.id,
  [...figure.querySelectorAll(groups)].map((group) =>
    [...group.querySelectorAll(shapes)].filter((shape) => {
      const box = shape.getBoundingClientRect();
      return box.width > 0 || box.height > 0;
    }).length),
]));
"""


class Browser:
    """One Chromium for all pages."""

    def __init__(self) -> None:
        options = Options()
        options.binary_location = _installed("chromium")
        # Root, as in a container, has no sandbox; and a container little shared memory.
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, Service(_installed("chromedriver")))

    def open(self, path: Path, width: int = 1200) -> None:
        """Show a file, and forget what was shown before."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        self.complaints()
        self.requests()
        self.driver.get(path.as_uri())
        WebDriverWait(self.driver, PATIENCE).until(
            lambda _: self.run("return document.documentElement.dataset.drawn === 'all'")
        )
        # What is drawn may still be fitted to its place.
        self.driver.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
        )

    def drawn(self) -> dict[str, list[int]]:
        """Of each figure's traces in sight, the number of shapes that have a size."""
        found: dict[str, list[int]] = self.run(DRAWN)
        return found

    def complaints(self) -> list[str]:
        """Warnings and errors of the console since the last call."""
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] in ("WARNING", "SEVERE")
        ]

    def requests(self) -> list[str]:
        """Addresses asked for since the last call, but those within the page."""
        events = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        addresses = [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [address for address in addresses if not address.startswith(LOCAL)]

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns."""
        return self.driver.execute_script(script, *arguments)


def _installed(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.fail(f"{program} is not installed: {INSTALL}", pytrace=False)
    return found
