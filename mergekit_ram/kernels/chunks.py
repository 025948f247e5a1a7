"""Walks over equally shaped tensors chunk by chunk, with scratch memory that is reused.

A chunk and its buffers fit the processor's caches, and the buffers are allocated once per
walk, so memory does not grow with the tensors. Inputs are borrowed and never written to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from mergekit_ram.kernels.recipe import KernelParameterError
from mergekit_ram.kernels.rounding import rounded

CPU_GRAIN = 32_768
"""torch gives an elementwise operation one thread for every so many elements, and runs a
smaller one without waiting for any other thread. A dozen float32 buffers of this length stay
in the L2 cache."""

SERIAL_CHUNK = CPU_GRAIN - 64
"""The longest chunk whose torch operations all run in the calling thread."""

ACCELERATOR_CHUNK = 8_388_608
"""Elements per chunk elsewhere: enough to fill a GPU, few enough for a sum of ones in float32."""


class KernelInputError(ValueError):
    """A tensor that no formula holds for; ``index`` says which input: 0 is the base, t agent t."""

    def __init__(self, index: int, problem: str):
        super().__init__(problem)
        self.index = index
        self.problem = problem


class KernelOverflowError(ValueError):
    """Finite inputs whose merge the output dtype cannot hold."""


def check_finite(tensor: torch.Tensor, index: int = 0) -> None:
    """Refuse a tensor with NaN or infinity in it.

    Raises:
        KernelInputError: with ``index`` and the first such value.
    """
    for piece in torch.split(tensor.detach().reshape(-1), CPU_GRAIN):
        # Only a sum that is not finite makes the search worth it.
        if not torch.isfinite(piece.sum(dtype=torch.float64)):
            broken = ~torch.isfinite(piece)
            if broken.any():
                raise KernelInputError(index, f"holds {float(piece[broken][0])}")


class Chunk:
    """One stretch of every input, and the buffers that its arithmetic may use."""

    def __init__(
        self, parts: Sequence[torch.Tensor], start: int, input_dtype: torch.dtype, scratch: Scratch
    ):
        self.parts = parts
        self._input_dtype = input_dtype
        self._scratch = scratch
        self.start = start
        self.agent_count = len(parts) - 1
        self.length = parts[0].numel()
        self.stop = start + self.length

    def buffer(self, name: str) -> torch.Tensor:
        """A named scratch tensor ``[length]``; its old content is gone."""
        return self._scratch.get(name, (self.length,))

    def bits(self, name: str) -> torch.Tensor:
        """The memory of that scratch tensor as signed integers."""
        return self._scratch.bits(name, (self.length,))

    def load(self, index: int, out: torch.Tensor) -> torch.Tensor:
        """Input ``index`` in the compute dtype, copied: inputs are never written to."""
        return out.copy_(rounded(self.parts[index], self._input_dtype))

    def load_all(self) -> torch.Tensor:
        """All inputs in the compute dtype, ``[inputs, length]``."""
        block = self._scratch.get("block", (len(self.parts), self.length))
        for index, row in enumerate(block.unbind()):
            self.load(index, row)
        return block

    def pieces(self, size: int = SERIAL_CHUNK) -> Iterator[Chunk]:
        """The same in shorter chunks, whose scratch memory stays small."""
        for start in range(0, self.length, size):
            parts = [part[start : start + size] for part in self.parts]
            yield Chunk(parts, self.start + start, self._input_dtype, self._scratch)

    def raise_if_not_finite(self) -> None:
        """Name the first input that holds NaN or infinity, if one does.

        Raises:
            KernelInputError: with its index.
        """
        for piece in self.pieces():
            for index, part in enumerate(piece.parts):
                check_finite(part, index)
                # Rounding to a narrower dtype can make an infinity of a finite value.
                if not torch.isfinite(rounded(part, self._input_dtype)).all():
                    raise KernelInputError(
                        index, f"holds values that do not fit {self._input_dtype}"
                    )


class Scratch:
    """Named tensors, allocated when first asked for; a shorter last chunk gets new ones."""

    def __init__(self, dtype: torch.dtype, device: torch.device):
        self._dtype = dtype
        self._device = device
        self._integer = torch.int64 if dtype == torch.float64 else torch.int32
        self._tensors: dict[str, torch.Tensor] = {}
        self._bits: dict[str, torch.Tensor] = {}

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._tensors.get(name)
        if tensor is None or tensor.shape != shape:
            tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
            self._tensors[name] = tensor
            self._bits.pop(name, None)
        return tensor

    def bits(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The same memory as signed integers, of a float32 or float64 tensor."""
        tensor = self.get(name, shape)
        if name not in self._bits:
            # A view costs as much as the operation on it.
            self._bits[name] = tensor.view(self._integer)
        return self._bits[name]


class Chunks:
    """Equally shaped tensors, cut into flat chunks.

    ``input_dtype`` is what the inputs are rounded to, ``compute_dtype`` what they are then
    reckoned in: float64 where that is the input dtype, else float32.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        dtype: torch.dtype | None,
        chunk_size: int | None,
    ):
        _check_alike(tensors)
        _check_chunk_size(chunk_size)
        # Detached, since a parameter that records gradients refuses buffers.
        self._tensors = [tensor.detach() for tensor in tensors]
        self.device = tensors[0].device
        self.numel = tensors[0].numel()
        self.count = len(tensors)
        self.input_dtype = dtype or _promoted(tensors)
        is_double = self.input_dtype == torch.float64
        self.compute_dtype = torch.float64 if is_double else torch.float32
        self.is_uniform = all(tensor.dtype == self.input_dtype for tensor in tensors)
        self.is_contiguous = all(tensor.is_contiguous() for tensor in tensors)
        self._chosen_size = chunk_size
        self.size = chunk_size or _chunk_size(self.device)

    def prefer_size(self, size: int | None) -> None:
        """Cut into chunks of this length or the device's own, unless the caller chose one."""
        self.size = self._chosen_size or size or _chunk_size(self.device)

    def __len__(self) -> int:
        """About how many chunks there are."""
        return -(-self.numel // self.size)

    def walk(self, first: int = 0, step: int = 1) -> Iterator[Chunk]:
        """Every ``step``-th chunk from ``first`` on, with scratch memory of its own."""
        scratch = Scratch(self.compute_dtype, self.device)
        if self.numel == 0:
            return
        parts = self._flat_parts if self.is_contiguous else self._row_parts
        for tensors, start in parts(first, step):
            yield Chunk(tensors, start, self.input_dtype, scratch)

    def _flat_parts(self, first: int, step: int) -> Iterator[tuple[list[torch.Tensor], int]]:
        flat = [tensor.view(-1) for tensor in self._tensors]
        for start in range(first * self.size, self.numel, step * self.size):
            length = min(self.size, self.numel - start)
            yield [tensor.narrow(0, start, length) for tensor in flat], start

    def _row_parts(self, first: int, step: int) -> Iterator[tuple[list[torch.Tensor], int]]:
        """Flattening a strided tensor copies it, so flatten a few rows at a time."""
        rows = self._tensors[0].shape[0]
        row_size = self.numel // rows
        height = max(1, self.size // row_size)
        for row in range(first * height, rows, step * height):
            parts = [tensor[row : row + height].reshape(-1) for tensor in self._tensors]
            yield parts, row * row_size


def _check_alike(tensors: Sequence[torch.Tensor]) -> None:
    """Broadcasting would make some unequal shapes a merge of something else."""
    for index, tensor in enumerate(tensors):
        if tensor.shape != tensors[0].shape:
            raise KernelInputError(
                index, f"has shape {list(tensor.shape)}, the base {list(tensors[0].shape)}"
            )
        if not tensor.is_floating_point():
            raise KernelInputError(index, f"is of {tensor.dtype}, which is no floating point")


def _check_chunk_size(size: int | None) -> None:
    if size is not None and not (isinstance(size, int) and size >= 1):
        raise KernelParameterError("chunk_size", f"must be a whole number ≥ 1; got {size}")


def _promoted(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def _chunk_size(device: torch.device) -> int:
    """Elements per chunk, which on a CPU decides how many threads work on it.

    Half of torch's threads: every operation ends with all threads waiting for the slowest.
    With as many as there are processors, another busy process on the machine makes that wait
    a scheduler's time slice, hundreds of times the work. Two threads of one core gain little.
    """
    if device.type != "cpu":
        return ACCELERATOR_CHUNK
    threads = torch.get_num_threads() // 2
    return CPU_GRAIN * threads if threads > 1 else SERIAL_CHUNK
