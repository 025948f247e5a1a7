"""Whether a record that lies in a folder is that of the weights beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mergekit_ram.errors import InputError
from mergekit_ram.record.contents import contents_digest
from mergekit_ram.record.schema import FileRecord, Finding, OverlapRecord

WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
SAFETENSORS = ".safetensors"


def compared_with_weights(record: OverlapRecord, folder: Path) -> OverlapRecord:
    """The record of a merge, with a finding if the weights beside it are others.

    Neither torch nor mergekit is needed where weights are safetensors.

    Args:
        record: that was read from the folder.
        folder: of a merged model; its weights may have been taken elsewhere.
    """
    there = {file.name for kind in WEIGHTS for file in folder.glob(kind)}
    written = {file.name: file for file in record.written or ()}
    if not written or not there:
        return record
    problems = list(_differences(folder, there, written))
    if not problems:
        return record
    finding = Finding(
        code="other-weights",
        text=f"This record is not that of the weights beside it: {', '.join(problems)}.",
    )
    return record.model_copy(update={"findings": (finding, *record.findings)})


def _differences(folder: Path, there: set[str], written: dict[str, FileRecord]) -> Iterator[str]:
    for name in sorted(there | written.keys()):
        path = folder / name
        if name not in written:
            yield f"{name} is not of this merge"
        elif not path.is_file():
            yield f"{name} is missing"
        elif path.stat().st_size != written[name].size or _contents(path) != written[name].contents:
            yield f"{name} has changed"


def _contents(path: Path) -> str | None:
    try:
        return contents_digest(path, path.suffix == SAFETENSORS, str(path.parent))
    except InputError:
        return None
