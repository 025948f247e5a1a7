"""The two implementations of the kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mergekit_ram.kernels import ram


@pytest.fixture(params=["torch", "numba"], scope="module")
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """What asks for it holds for both implementations."""
    if request.param == "numba":
        pytest.importorskip("numba")
        assert ram.available()
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setenv(ram.DISABLE_VARIABLE, "0")
        yield request.param
