"""Task vectors of the matrices in a tensor, block by block, in units that keep squares in range.

Inputs are borrowed and never written to; of what is computed from them one block is held.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from mergekit_ram.kernels.blocks import Inputs, KernelOverflowError, rounded

CPU_BLOCK = 1 << 20
"""Elements of one agent in a block: enough lines for a matrix product to reach its speed."""

ACCELERATOR_BLOCK = 1 << 24

FEWEST_LINES = 256
"""Of a block, however long a line is."""

LARGEST_EXPONENT = 100
"""Of a power of two that float32 values are multiplied by."""


@dataclass(frozen=True)
class Layout:
    """Where a tensor holds its matrices; one of less than two axes has none.

    ``input_last`` says that a matrix is stored ``[out, in]``, else ``[in, out]``. ``packed`` says
    that the last two axes are a matrix and those before count the matrices, such as experts;
    else there is one matrix, and the axes after the second, a convolution's kernel, are columns
    along with the second. ``has_matrices`` is false of what no input is multiplied by.
    """

    input_last: bool = True
    packed: bool = False
    has_matrices: bool = True

    def matrices(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All matrices, each ``[out, in]``, or all values as one column; views if contiguous."""
        if not self.holds_matrices(tensor):
            return (tensor.reshape(-1, 1),)
        if self.packed and tensor.ndim > 2:
            found = tensor.flatten(0, -3).unbind()
        else:
            found = (tensor.flatten(1),)
        return found if self.input_last else tuple(matrix.T for matrix in found)

    def holds_matrices(self, tensor: torch.Tensor) -> bool:
        """Whether there is a matrix in a tensor."""
        return self.has_matrices and tensor.ndim > 1


@dataclass(frozen=True)
class Block:
    """Some lines of a matrix: rows, or columns where it is walked over by columns."""

    lines: tuple[slice, slice]
    """Their place in a matrix."""
    base: torch.Tensor
    """``[lines, in]``, or ``[out, lines]``."""
    updates: torch.Tensor
    """Task vectors times units, ``[lines, N, in]``, or ``[N, out, lines]``."""
    by_columns: bool

    def update(self, t: int) -> torch.Tensor:
        """The task vector of one agent, of ``base``'s shape."""
        return self.updates[t] if self.by_columns else self.updates[:, t]


@dataclass(frozen=True)
class Updates:
    """The task vectors of one matrix."""

    inputs: Inputs
    """Base and agents, ``[out, in]`` each, any strides."""
    epsilon: float
    """ε; entries with |τ| ≤ ε are 0."""
    dtype: torch.dtype
    """That is computed in."""
    units: tuple[float, ...]
    """Powers of two that the agents' task vectors are multiplied by."""
    block: int | None = None
    """Elements of one agent in a block."""
    by_columns: bool = False
    """Whether a walk's lines are columns."""

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.inputs.tensors[0].shape
        return rows, columns

    def kept(self, numbers: Sequence[int], units: Sequence[float]) -> Updates:
        """Those of some agents, in units."""
        base, *agents = self.inputs.tensors
        kept = Inputs([base, *(agents[t] for t in numbers)], self.inputs.input_dtype)
        return replace(self, inputs=kept, units=tuple(units))

    def walk(self) -> Iterator[Block]:
        """All blocks in order."""
        (rows, columns), count = self.shape, len(self.units)
        total, length = (columns, rows) if self.by_columns else (rows, columns)
        is_cpu = self.inputs.device.type == "cpu"
        size = self.block or (CPU_BLOCK if is_cpu else ACCELERATOR_BLOCK)
        height = max(FEWEST_LINES, size // max(1, length))
        for start in range(0, total, height):
            own = slice(start, min(start + height, total))
            lines = (slice(None), own) if self.by_columns else (own, slice(None))
            base, *agents = (self._loaded(tensor[lines]) for tensor in self.inputs.tensors)
            shape = (count, *base.shape) if self.by_columns else (len(base), count, columns)
            block = Block(lines, base, self.empty(*shape), self.by_columns)
            for t, (agent, unit) in enumerate(zip(agents, self.units, strict=True)):
                update = torch.sub(agent, base, out=block.update(t))
                torch.hardshrink(update, self.epsilon, out=update)
                if unit != 1.0:
                    update.mul_(unit)
            yield block

    def empty(self, *shape: int) -> torch.Tensor:
        """New memory in the compute dtype."""
        return torch.empty(shape, dtype=self.dtype, device=self.inputs.device)

    def _loaded(self, part: torch.Tensor) -> torch.Tensor:
        # torch transposes fast between tensors of one dtype only.
        return rounded(part.contiguous(), self.inputs.input_dtype).to(self.dtype)

    def largest(self) -> list[float]:
        """The size of every agent's largest entry.

        Raises:
            KernelInputError: with the index of the input that holds NaN or infinity.
            KernelOverflowError: a difference of finite inputs is infinite.
        """
        found = [0.0] * len(self.units)
        for block in self.walk():
            for t in range(len(found)):
                low, high = (float(bound) for bound in torch.aminmax(block.update(t)))
                if not math.isfinite(low + high):
                    self.inputs.check_finite(slice(0, self.inputs.numel))
                    raise KernelOverflowError(f"the task vectors overflow {self.dtype}")
                found[t] = max(found[t], -low, high)
        return found


def updates_of(
    base: torch.Tensor,
    agents: Sequence[torch.Tensor],
    *,
    epsilon: float,
    layout: Layout,
    dtype: torch.dtype | None = None,
    block: int | None = None,
) -> list[Updates]:
    """The task vectors of every matrix in a tensor.

    Raises:
        KernelInputError: an input is of another shape or no float.
    """
    inputs = Inputs((base, *agents), dtype)
    columns = zip(*(layout.matrices(tensor) for tensor in inputs.tensors), strict=True)
    units = (1.0,) * len(agents)
    return [
        Updates(Inputs(own, inputs.input_dtype), epsilon, inputs.compute_dtype, units, block)
        for own in columns
    ]


def power_of_two(size: float) -> float:
    """The power of two that brings a size near 1; 1 for nothing."""
    if size == 0:
        return 1.0
    exponent = -math.frexp(size)[1]
    return math.ldexp(1.0, max(-LARGEST_EXPONENT, min(LARGEST_EXPONENT, exponent)))
