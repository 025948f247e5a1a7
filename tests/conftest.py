"""Shared fixtures. No test reaches a model hub."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from hypothesis import settings
from models import Trio

# Kernel examples differ in cost by orders of magnitude; slow machines are no failures.
settings.register_profile("project", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("project")


@pytest.fixture
def trio(tmp_path: Path) -> Trio:
    """A bf16 base and three sparse agents."""
    return Trio(tmp_path)
