"""Runs one method through mergekit's own ``run_merge``, and measures its time and its memory."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROBE_SECONDS = 0.002


@dataclass(frozen=True)
class Method:
    """A row of the table; ``plugin`` is off where mergekit's own method of that name is meant."""

    label: str
    name: str
    passes: int = 1
    plugin: bool = True
    needs_base: bool = True
    model_parameters: dict[str, float] = field(default_factory=dict)

    def recipe(self, models: Path, agents: int) -> dict[str, Any]:
        """The merge of all models, so that every method reads the same bytes."""
        names = [f"agent{number}" for number in range(agents)]
        inputs = names if self.needs_base else ["base", *names]
        entries = [
            {"model": str(models / name), "parameters": self.model_parameters} for name in inputs
        ]
        recipe: dict[str, Any] = {"merge_method": self.name, "models": entries}
        return recipe | ({"base_model": str(models / "base")} if self.needs_base else {})


RAM_PLUS = Method("ram_plus", "ram_plus", passes=2)

METHODS = (
    Method("linear", "linear", needs_base=False, model_parameters={"weight": 1.0}),
    Method("ram", "ram"),
    RAM_PLUS,
    Method("ram_directions", "ram_directions"),
    Method("mergekit ram", "ram", plugin=False),
    Method("mergekit ramplus_tl", "ramplus_tl", plugin=False),
    Method("dare_linear", "dare_linear", model_parameters={"weight": 1.0, "density": 0.5}),
    Method("ties", "ties", model_parameters={"weight": 1.0, "density": 0.5}),
)


def seconds(
    method: Method, models: Path, agents: int, out: Path, *, cold: bool, cuda: bool = False
) -> float:
    """Seconds of one ``run_merge``, planning to last byte written; imports are not in it."""
    from mergekit.config import MergeConfiguration
    from mergekit.io.tasks import LoaderCache
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    import mergekit_ram

    logging.disable(logging.INFO)
    LoaderCache.loaders.clear()
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    if cold:
        drop_cached_pages(models)
    config = MergeConfiguration.model_validate(method.recipe(models, agents))
    options = MergeOptions(quiet=True, copy_tokenizer=False, write_model_card=False, cuda=cuda)
    (mergekit_ram.install if method.plugin else mergekit_ram.uninstall)()
    try:
        start = time.perf_counter()
        run_merge(config, str(out), options)
        return time.perf_counter() - start
    finally:
        mergekit_ram.install()


@dataclass(frozen=True)
class Look:
    """A row of the table that inspects the merge by ``ram_plus`` in place of doing it.

    With ``directions`` it works out what ``ram_directions`` would keep, which is a merge by that.
    """

    label: str
    epsilons: tuple[float, ...] = ()
    sample: float | None = None
    directions: bool | None = None

    def seconds(
        self, models: Path, agents: int, *, cold: bool = False, cuda: bool = False
    ) -> float:
        """Seconds of one ``inspect``; imports are not in it."""
        from mergekit.config import MergeConfiguration
        from mergekit.io.tasks import LoaderCache
        from mergekit.options import MergeOptions

        import mergekit_ram
        from mergekit_ram.inspection.sample import Sample

        logging.disable(logging.INFO)
        LoaderCache.loaders.clear()
        config = MergeConfiguration.model_validate(RAM_PLUS.recipe(models, agents))
        options = MergeOptions(quiet=True, cuda=cuda)
        sample = None if self.sample is None else Sample(self.sample)
        if cold:
            drop_cached_pages(models)
        start = time.perf_counter()
        mergekit_ram.inspect(
            config, options, epsilons=self.epsilons, sample=sample, directions=self.directions
        )
        return time.perf_counter() - start


LOOKS = (
    Look("inspect"),
    Look("inspect, directions", directions=True),
    Look("inspect, four epsilons", epsilons=(1e-7, 1e-6, 1e-4, 1e-3)),
    Look("inspect, sample 0.01", sample=0.01),
)


@dataclass(frozen=True)
class Memory:
    """Bytes at their highest: anonymous (no mapped file pages), and all that is resident."""

    anonymous: int
    resident: int


def memory(method: Method, models: Path, agents: int, out: Path, *, cuda: bool = False) -> Memory:
    """Peak memory of one merge in a process of its own, as Linux tells it to its parent."""
    process = multiprocessing.get_context("spawn").Process(
        target=seconds, args=(method, models, agents, out), kwargs={"cold": False, "cuda": cuda}
    )
    process.start()
    anonymous = resident = 0
    while process.is_alive():
        status = process_status(process.pid)
        anonymous = max(anonymous, status.get("RssAnon", 0))
        resident = max(resident, status.get("VmHWM", 0))
        time.sleep(PROBE_SECONDS)
    if process.exitcode != 0:
        raise RuntimeError(f"{method.label} ended with exit code {process.exitcode}")
    return Memory(anonymous, resident)


def process_status(pid: int | None) -> dict[str, int]:
    """The fields of ``/proc/PID/status`` that are sizes, in bytes."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(size) * 1024 for name, size, _ in fields}


def drop_cached_pages(models: Path) -> None:
    """Ask the kernel to forget the files, so that the next read comes from the disk."""
    for file in models.glob("*/*.safetensors"):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
