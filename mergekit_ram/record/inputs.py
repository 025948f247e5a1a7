"""Whether the files that a merge reads stay the same from its planning to its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mergekit_ram.errors import InputError
from mergekit_ram.merges.loads import PlannedLoads
from mergekit_ram.models.checkpoints import shard_path

FileState = tuple[int, int, int]
"""Size, time of the last change in nanoseconds, and number of the file's inode."""

PARTS = ("size", "time of change", "identity")


@dataclass(frozen=True)
class InputFiles:
    """The files of weights of one plan, as they were when it was made."""

    models: dict[Path, str]
    states: dict[Path, FileState | None]

    @classmethod
    def of(cls, planned: PlannedLoads) -> InputFiles:
        """Look at all files that a plan reads."""
        indexes = {load.model: load.index for loads in planned.values() for load in loads}
        models = {
            shard_path(index, shard.filename): model
            for model, index in indexes.items()
            for shard in index.shards
        }
        return cls(models, {path: _state(path) for path in models})

    def check_unchanged(self) -> None:
        """Compare the files with what they were.

        Raises:
            InputError: naming the first file that differs, and in what.
        """
        for path, was in self.states.items():
            now = _state(path)
            if now != was:
                raise InputError(
                    f"model {self.models[path]}: {path} {_difference(was, now)} since the merge "
                    "was planned, so that counts and weights would be of different files. What "
                    "was written so far is no complete model and does not load: merge again when "
                    "nothing writes to the inputs."
                )


def _state(path: Path) -> FileState | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def _difference(was: FileState | None, now: FileState | None) -> str:
    if was is None or now is None:
        return "has gone" if now is None else "has come"
    different = [part for part, a, b in zip(PARTS, was, now, strict=True) if a != b]
    return f"has changed ({', '.join(different)})"
