"""From a wider float dtype to a narrower one, rounded once."""

from __future__ import annotations

import torch


def rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``tensor`` in another dtype: to the nearest value, and to the even one of two as near.

    torch takes float64 to the dtypes below float32 by way of float32, which rounds twice:
    1 + 2⁻⁸ + 2⁻³⁰ would become 1 in bfloat16. Where no rounding is needed, and where one of
    torch's is the only one, this is ``tensor.to(dtype)``.

    Args:
        tensor: float, any shape, borrowed.
        dtype: float.

    Returns:
        The tensor itself if it is of that dtype already. Too large values become infinite.
    """
    if tensor.dtype == torch.float64 and dtype.itemsize < torch.float32.itemsize:
        tensor = _to_odd_float32(tensor)
    return tensor.to(dtype)


def _to_odd_float32(tensor: torch.Tensor) -> torch.Tensor:
    """float64 as float32, where the odd one of the two neighbours stands for all between them.

    float32 has more than two bits beyond any narrower dtype, so that rounding an odd neighbour
    is rounding what it stands for (Boldo and Melquiond, "Emulation of FMA and correctly-rounded
    sums: proved algorithms using rounding to odd", 2008).
    """
    nearest = tensor.to(torch.float32)
    bits = nearest.view(torch.int32)
    back = nearest.to(torch.float64)
    is_even_neighbour = (back != tensor) & ((bits & 1) == 0)
    # One step of the bit pattern is one step away from zero, whatever the sign.
    step = 1 - 2 * (back.abs() > tensor.abs()).to(torch.int32)
    return (bits + step * is_even_neighbour).view(torch.float32)
