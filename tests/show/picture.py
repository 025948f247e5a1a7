"""Save the first figures of a page as a picture.

    python tests/show/picture.py overlap.html overlap.png

It needs Chromium and its driver, as the tests of the page do.
"""

from __future__ import annotations

import sys
from pathlib import Path

from browser import Browser

WIDTH = 1100
FIRST = "section:has(#density)"


def take(browser: Browser, page: Path, picture: Path) -> None:
    browser.open(page.resolve(), width=WIDTH)
    browser.driver.find_element("css selector", FIRST).screenshot(str(picture))


if __name__ == "__main__":
    opened = Browser()
    take(opened, Path(sys.argv[1]), Path(sys.argv[2]))
    opened.driver.quit()
