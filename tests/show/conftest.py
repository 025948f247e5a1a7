"""One browser, and one page of each kind of record, for all tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser
from pages import RECORDS

from mergekit_ram.show.page import write_page


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    opened = Browser()
    yield opened
    opened.driver.quit()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{name}.html" for name in RECORDS}
    for name, path in paths.items():
        write_page(RECORDS[name], path)
    return paths
