"""What the tests of the way into mergekit merge."""

from __future__ import annotations

import pytest
import yaml
from models import Trio


@pytest.fixture(scope="module")
def shared_trio(tmp_path_factory: pytest.TempPathFactory) -> Trio:
    trio = Trio(tmp_path_factory.mktemp("trio"))
    (trio.folder / "recipe.yml").write_text(yaml.safe_dump(trio.config("ram_plus")))
    return trio
