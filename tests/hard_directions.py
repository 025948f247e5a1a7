"""Hard cases for ``ram_directions``; run as a program, the truth in 60 digits (needs mpmath).

``python tests/hard_directions.py`` writes tests/data/hard_directions.safetensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILE = Path(__file__).parent / "data" / "hard_directions.safetensors"

SHAPES = ((4, 40), (40, 4), (9, 11))
RIDGES = (1e-12, 1e-9, 1e-6, 1e-3, 0.3, 1e3)
DIGITS = 60


@dataclass(frozen=True)
class Case:
    """Agents of a base of zeros, so that they are their own task vectors, exactly."""

    name: str
    agents: tuple[np.ndarray, ...]
    """float32 ``[out, in]``"""
    ridge: float


def cases() -> Iterator[Case]:
    """About two hundred, the same in every run."""
    for number, shape in enumerate(SHAPES):
        for kind, make in KINDS.items():
            agents = make(np.random.RandomState(number), shape)
            for ridge in RIDGES:
                name = f"{kind} {shape[0]}x{shape[1]} {ridge:g}"
                yield Case(name, tuple(agent.astype(np.float32) for agent in agents), ridge)


def _independent(draw, shape):
    return [draw.randn(*shape) for _ in range(3)]


def _rank_one(draw, shape):
    return [np.outer(draw.randn(shape[0]), draw.randn(shape[1])) for _ in range(3)]


def _dependent(draw, shape):
    one, two = draw.randn(*shape), draw.randn(*shape)
    return [one, two, one.astype(np.float32) + two.astype(np.float32)]


def _one_space(draw, shape):
    rows = draw.randn(2, shape[1])
    return [draw.randn(shape[0], 2) @ rows for _ in range(3)]


def _shared_columns(draw, shape):
    columns = draw.randn(shape[0], 1)
    return [columns @ draw.randn(1, shape[1]) for _ in range(4)]


def _nearly_equal(draw, shape):
    one = draw.randn(*shape)
    return [one, one + 1e-4 * draw.randn(*shape)]


KINDS = {
    "independent": _independent,
    "rank one": _rank_one,
    "dependent": _dependent,
    "equal": lambda draw, shape: [draw.randn(*shape)] * 2 + [draw.randn(*shape)],
    "opposite": lambda draw, shape: [one := draw.randn(*shape), -one],
    "multiples": lambda draw, shape: [one := draw.randn(*shape), 3 * one.astype(np.float32)],
    "norms 1 to 1e4": lambda draw, shape: [10.0**t * draw.randn(*shape) for t in (0, 2, 4)],
    "one space": _one_space,
    "shared columns": _shared_columns,
    "nearly equal": _nearly_equal,
    "sparse": lambda d, shape: [d.randn(*shape) * (d.rand(*shape) < 0.1) for _ in range(3)],
}


def truth(case: Case) -> np.ndarray:
    """X, by the formula of :mod:`mergekit_ram.kernels.solutions`."""
    import mpmath

    mpmath.mp.dps = DIGITS
    updates = [mpmath.matrix(agent.astype(float).tolist()) for agent in case.agents]
    height, width = case.agents[0].shape
    anchor, system = mpmath.zeros(height, width), mpmath.zeros(width, width)
    for i in range(height):
        for j in range(width):
            own = [update[i, j] for update in updates]
            length = mpmath.sqrt(sum(d * d for d in own))
            anchor[i, j] = sum(d * abs(d) for d in own) / length if length else 0
    pulled = mpmath.zeros(height, width)
    for update in updates:
        gram = update.T * update
        gram /= sum(gram[i, i] for i in range(width))
        system += gram
        pulled += (anchor - update) * gram
    system += mpmath.mpf(case.ridge) * len(updates) / width * mpmath.eye(width)
    solved = mpmath.lu_solve(system, pulled.T) if width == 1 else (system**-1 * pulled.T)
    return np.array((anchor - solved.T).tolist(), dtype=float)


if __name__ == "__main__":
    import torch
    from safetensors.torch import save_file

    found = {case.name: torch.from_numpy(truth(case)).float() for case in cases()}
    save_file(found, FILE)
    print(f"{len(found)} cases, {FILE.stat().st_size:,} bytes")
