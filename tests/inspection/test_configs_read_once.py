"""Planning reads every model's configuration from its file once, and anew the next time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from mergekit.config import MergeConfiguration
from models import Trio
from transformers import AutoConfig

from mergekit_ram import inspect
from mergekit_ram.errors import InputError


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often transformers was asked for the configuration of every path."""
    found: Counter[str] = Counter()
    read = AutoConfig.from_pretrained

    def counted(path: Any, **options: Any) -> Any:
        found[str(path)] += 1
        return read(path, **options)

    monkeypatch.setattr(AutoConfig, "from_pretrained", counted)
    return found


def look(trio: Trio) -> Any:
    return inspect(MergeConfiguration.model_validate(trio.config("ram_plus")), directions=False)


def test_each_configuration_is_read_once(trio: Trio, readings):
    look(trio)
    paths = [trio.base_path, *(model["model"] for model in trio.config("ram_plus")["models"])]
    assert readings == dict.fromkeys(paths, 1)


def test_what_mergekit_changes_in_the_outputs_stays_there(trio: Trio, readings):
    assert look(trio).model_dump(exclude={"seconds"}) == look(trio).model_dump(exclude={"seconds"})
    assert set(readings.values()) == {2}


def test_a_configuration_that_has_changed_since_is_seen(trio: Trio):
    look(trio)
    file = Path(trio.base_path) / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "architectures": []}))
    with pytest.raises(InputError, match=r"`architectures` in .*config\.json has to name one"):
        look(trio)
