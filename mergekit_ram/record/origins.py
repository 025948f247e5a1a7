"""Where a record is from: the files, the sample, and what computed it."""

from __future__ import annotations

from pydantic import Field

from mergekit_ram.record.columns import Frozen


class SampleRecord(Frozen):
    """How a sample was drawn; every figure of the record is then an estimate."""

    fraction: float = Field(description="of the rows of every tensor")
    seed: int
    parameters: int = Field(description="parameters that were looked at")


class FileRecord(Frozen):
    """A file of weights, told apart without reading all of them."""

    name: str
    size: int
    header: str = Field(description="digest of its tensors' names, shapes and dtypes")
    contents: str | None = Field(
        default=None,
        description="digest of a sample of every tensor's bytes; null in records of version 1",
    )


class ModelRecord(Frozen):
    """The files that a model was read from."""

    model: str
    files: tuple[FileRecord, ...]


class Versions(Frozen):
    """What computed the record."""

    mergekit_ram: str
    mergekit: str
    torch: str
