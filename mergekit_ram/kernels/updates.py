"""Task vectors of one matrix, block by block: where a matrix lies in a tensor, and its values.

Inputs are borrowed and never written to; of what is computed from them one block is held.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from mergekit_ram.kernels.blocks import KernelInputError, KernelOverflowError, check_finite

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


class Scratch:
    """Named tensors, allocated when first asked for; a shorter last block gets new ones."""

    def __init__(self, dtype: torch.dtype, device: torch.device):
        self._dtype = dtype
        self._device = device
        self._tensors: dict[str, torch.Tensor] = {}

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._tensors.get(name)
        if tensor is None or tensor.shape != shape:
            tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
            self._tensors[name] = tensor
        return tensor


@dataclass(frozen=True)
class Block:
    """Some lines of a matrix: rows, or columns where it is walked over by columns."""

    lines: slice
    base: torch.Tensor
    """``[lines, in]``, or ``[out, lines]``; scratch memory."""
    updates: torch.Tensor
    """Task vectors times units, ``[lines, N, in]``, or ``[N, out, lines]``; scratch memory."""
    by_columns: bool

    def update(self, t: int) -> torch.Tensor:
        """The task vector of one agent, of ``base``'s shape."""
        return self.updates[t] if self.by_columns else self.updates[:, t]


class Updates:
    """The task vectors of one matrix.

    Args:
        base: ``[out, in]``, any strides.
        agents: of the same shape.
        epsilon: ε; entries with |τ| ≤ ε are 0.
        input_dtype: that the inputs are rounded to first.
        compute_dtype: that they are then reckoned in.
        block: elements of one agent in a block.
    """

    def __init__(
        self,
        base: torch.Tensor,
        agents: Sequence[torch.Tensor],
        *,
        epsilon: float,
        input_dtype: torch.dtype,
        compute_dtype: torch.dtype,
        block: int | None = None,
    ):
        self.base = base
        self.agents = list(agents)
        self.units = [1.0] * len(self.agents)
        self.by_columns = False
        """Whether a walk's lines are columns."""
        self.dtype = compute_dtype
        self.device = base.device
        self.scratch = Scratch(compute_dtype, base.device)
        self._epsilon = epsilon
        self.input_dtype = input_dtype
        self._block = block or (CPU_BLOCK if self.device.type == "cpu" else ACCELERATOR_BLOCK)

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.base.shape
        return rows, columns

    def kept(self, numbers: Sequence[int], units: Sequence[float]) -> Updates:
        """Those of some agents, in units: powers of two that they are multiplied by."""
        found = self._alike([self.agents[t] for t in numbers], self.dtype)
        found.units = list(units)
        return found

    def in_float64(self) -> Updates:
        """The same in float64."""
        return self._alike(self.agents, torch.float64)

    def _alike(self, agents: Sequence[torch.Tensor], compute_dtype: torch.dtype) -> Updates:
        return Updates(
            self.base,
            agents,
            epsilon=self._epsilon,
            input_dtype=self.input_dtype,
            compute_dtype=compute_dtype,
            block=self._block,
        )

    def holds_square(self, norm: float) -> bool:
        """Whether a sum of squares lies where their rounding is relative, and none overflows."""
        limits = torch.finfo(self.dtype)
        return bool(math.sqrt(limits.tiny) < norm < limits.max**0.75)

    def walk(self) -> Iterator[Block]:
        """All blocks in order; a block's tensors are written over by the next one."""
        total, length = self.shape[::-1] if self.by_columns else self.shape
        height = max(FEWEST_LINES, self._block // max(1, length))
        for start in range(0, total, height):
            block = self._block_at(slice(start, min(start + height, total)))
            for t, agent in enumerate(self.agents):
                update = block.update(t)
                self._load(self.lines_of(agent, block), update).sub_(block.base)
                # Strict, as ε is.
                torch.hardshrink(update, self._epsilon, out=update)
                if self.units[t] != 1.0:
                    update.mul_(self.units[t])
            yield block

    def empty(self, *shape: int) -> torch.Tensor:
        """New memory in the compute dtype."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def lines_of(self, matrix: torch.Tensor, block: Block) -> torch.Tensor:
        """A view of a block's lines in another matrix of this shape."""
        return matrix[:, block.lines] if self.by_columns else matrix[block.lines]

    def _block_at(self, lines: slice) -> Block:
        """A block with the base loaded, and room for the task vectors."""
        (rows, columns), count = self.shape, len(self.agents)
        length = lines.stop - lines.start
        if self.by_columns:
            shape, room = (rows, length), (count, rows, length)
        else:
            shape, room = (length, columns), (length, count, columns)
        block = Block(
            lines,
            self.scratch.get("base", shape),
            self.scratch.get("updates", room),
            self.by_columns,
        )
        self._load(self.lines_of(self.base, block), block.base)
        return block

    def _load(self, part: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        if part.stride(0) < part.stride(1):
            # torch transposes fast between tensors of one dtype only.
            part = part.contiguous()
        if part.dtype != self.input_dtype:
            part = part.to(self.input_dtype)
        return out.copy_(part)

    def largest(self) -> list[float]:
        """The size of every agent's largest entry, in no unit.

        Raises:
            KernelInputError: with the index of the input that holds NaN or infinity.
            KernelOverflowError: a difference of finite inputs is infinite.
        """
        found = [0.0] * len(self.agents)
        for block in self.walk():
            for t, unit in enumerate(self.units):
                low, high = (float(bound) for bound in torch.aminmax(block.update(t)))
                size = max(-low, high) / unit
                if not math.isfinite(low + high):
                    self._raise_not_finite()
                found[t] = max(found[t], size)
        return found

    def _raise_not_finite(self) -> None:
        for index, tensor in enumerate((self.base, *self.agents)):
            check_finite(tensor, index)
            # Rounding to a narrower dtype can make an infinity of a finite value.
            if not torch.isfinite(tensor.to(self.input_dtype)).all():
                raise KernelInputError(index, f"holds values that do not fit {self.input_dtype}")
        raise KernelOverflowError(f"the task vectors overflow {self.dtype}")


def power_of_two(size: float) -> float:
    """The power of two that brings a size near 1; 1 for nothing."""
    if size == 0:
        return 1.0
    exponent = -math.frexp(size)[1]
    return math.ldexp(1.0, max(-LARGEST_EXPONENT, min(LARGEST_EXPONENT, exponent)))
