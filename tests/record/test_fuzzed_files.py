"""Files of weights that are broken in any way are read or refused, with a name and in a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from mergekit_ram.errors import InputError
from mergekit_ram.models.checkpoints import read_shard
from mergekit_ram.record.contents import file_record

EXAMPLES = 150
WEIGHTS = {
    "model.norm.weight": torch.ones(8),
    "model.embed.weight": torch.zeros(5000, 4, dtype=torch.bfloat16),
}
SAFE = save(WEIGHTS, metadata={"format": "pt"})
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.lists(st.integers(-4, 2**70), max_size=3)
)


def in_one_line(path: Path, is_safetensors: bool) -> None:
    """Whoever reads it gets something, or an error of ours."""
    readers: list[Callable[[], Any]] = [
        lambda: file_record(path, "some model"),
    ]
    if is_safetensors:
        readers.append(lambda: read_shard(path, is_safetensors, "some model"))
    for read in readers:
        try:
            read()
        except InputError as error:
            assert_named(error, path)


def assert_named(error: InputError, path: Path) -> None:
    assert error.message.startswith("model some model: ")
    assert f"{path} cannot be read: " in error.message or f"cannot read {path}: " in error.message
    assert error.message.isprintable()


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Puts bytes into a new file each."""
    folder = tmp_path_factory.mktemp("fuzzed")

    def put(content: bytes, ending: str = "safetensors") -> Path:
        path = folder / f"{len(list(folder.iterdir()))}.{ending}"
        path.write_bytes(content)
        return path

    return put


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_headers_with_anything_exchanged(place, data):
    length = int.from_bytes(SAFE[:8], "little")
    header = json.loads(SAFE[8 : 8 + length])
    name = data.draw(st.sampled_from(sorted(header)))
    field = data.draw(st.sampled_from(["dtype", "shape", "data_offsets", "all"]))
    if field == "all":
        header[name] = data.draw(VALUES)
    else:
        header[name] = {**header[name], field: data.draw(VALUES)}
    text = json.dumps(header).encode()
    in_one_line(place(len(text).to_bytes(8, "little") + text + SAFE[8 + length :]), True)


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, len(SAFE)), at=st.integers(0, 300), new=st.binary(max_size=9))
def test_files_that_were_cut_or_overwritten(place, cut, at, new):
    in_one_line(place((SAFE[:at] + new + SAFE[at + len(new) :])[:cut]), True)


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 2000), new=st.binary(max_size=9), cut=st.integers(0, 3000))
def test_pickles_that_were_cut_or_overwritten(place, tmp_path, at, new, cut):
    torch.save({"w": torch.ones(8), "step": 3}, tmp_path / "whole.bin")
    whole = (tmp_path / "whole.bin").read_bytes()
    in_one_line(place((whole[:at] + new + whole[at + len(new) :])[:cut], "bin"), False)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"7 ",
    ],
)
def test_what_is_no_file_of_weights(place, content):
    path = place(content)
    with pytest.raises(InputError, match="cannot read"):
        read_shard(path, True, "some model")
    with pytest.raises(InputError, match="cannot be read"):
        file_record(path, "some model")
