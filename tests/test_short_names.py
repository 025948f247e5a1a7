"""Short names of models."""

from __future__ import annotations

import pytest

from mergekit_ram.names import LABEL_LENGTH, labels

CHECKPOINTS = [f"/data/runs/2026-11/{name}/checkpoint-500" for name in ("coder", "tool")]


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (["./agents/add", "./agents/sort/"], ("add", "sort")),
        (["one/agent", "two/agent"], ("one/agent", "two/agent")),
        (["agent", "x/agent"], ("agent", "x/agent")),
        (CHECKPOINTS, ("coder/checkpoint-500", "tool/checkpoint-500")),
        (
            [CHECKPOINTS[0], "/data/runs/2026-11/tool/last"],
            ("coder/checkpoint-500", "tool/last"),
        ),
        (["Gen-Verse/ReasonFlux-Coder-7B", "a/b"], ("ReasonFlux-Coder-7B", "b")),
        (
            ["run-2026-11-28-learning-rate-1-coder", "run-2026-11-28-learning-rate-1-tool"],
            ("run-2026-1…e-1-coder", "run-2026-1…te-1-tool"),
        ),
        (
            ["a" * 40 + "1", "a" * 40 + "1"],
            ("1 aaaaaaaaaa…aaaaaaaa1", "2 aaaaaaaaaa…aaaaaaaa1"),
        ),
    ],
)
def test_labels_are_short_and_distinct(models, expected):
    assert labels(models) == expected
    assert all(len(label) <= LABEL_LENGTH + 2 for label in expected)
