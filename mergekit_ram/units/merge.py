"""A whole merge by units of work."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.options import MergeOptions

from mergekit_ram import handover
from mergekit_ram.autoload import METHOD_NAMES, install
from mergekit_ram.errors import HostError, InputError
from mergekit_ram.plan.lock import lock_folder
from mergekit_ram.plan.recipe import read_recipe
from mergekit_ram.units import asked
from mergekit_ram.units.driver import Driver, How, Unfinished, remove
from mergekit_ram.units.estimate import Estimate, estimate
from mergekit_ram.units.manifest import WORK_FOLDER, WorkFolder
from mergekit_ram.units.work import Job, plan_of

LOG = logging.getLogger("mergekit_ram")

ADAPTERS = "adapters"
"""In the work folder: every worker needs the same merged adapters."""


@dataclass(frozen=True)
class Request:
    """What is to be merged.

    Args:
        text: the configuration's YAML.
        config: the same, read.
        out_path: folder of the merged model.
        options: of mergekit's commands.
    """

    text: str
    config: MergeConfiguration
    out_path: Path
    options: MergeOptions

    @property
    def inputs(self) -> tuple[str, ...]:
        """Folders of models and adapters."""
        references = self.config.referenced_models()
        return tuple(
            part.path for model in references for part in (model.model, model.lora) if part
        )

    def job(self, workers: int) -> Job:
        """The merge as workers are told of it."""
        out_path, options = self.out_path.resolve(), self.options
        if not options.lora_merge_cache:
            cache = str(out_path / WORK_FOLDER / ADAPTERS)
            options = options.model_copy(update={"lora_merge_cache": cache})
        threads = options.num_threads or max(1, torch.get_num_threads() // workers)
        return Job(self.text, str(out_path), options, os.getcwd(), threads)


def read_merge(config_file: Path, out_path: Path, options: MergeOptions) -> Request:
    """Read a configuration of one of our methods.

    Raises:
        HostError: the plugin is switched off.
        InputError: the file is no configuration, or one of another method.
    """
    if not install():
        raise HostError(
            "mergekit-ram is switched off by MERGEKIT_RAM_DISABLE in the environment; "
            "unset it to merge"
        )
    recipe = read_recipe(config_file, MergeConfiguration)
    method = recipe.config.merge_method
    if method not in METHOD_NAMES:
        raise InputError(
            f"{config_file}: merge_method {method} is none of "
            f"{', '.join(sorted(METHOD_NAMES))}, which alone are merged by units; use "
            "mergekit-yaml."
        )
    return Request(recipe.text, recipe.config, out_path, options)


def merge(request: Request, how: How) -> bool:
    """Merge by units, going on where an earlier try stopped.

    Returns:
        Whether the model is finished; with ``how.only`` others may have units to do.

    Raises:
        RamError: as merging does; an unfinished merge of another plan lies in the folder, or
            another process is at work in it; with ``how.only`` a finished model of another
            merge lies in it, and is not replaced.
    """
    try:
        _check_asked(request, how)
        return _merge(request, how)
    except asked.NothingToDo as told:
        LOG.warning("%s", told)
        return True


def _check_asked(request: Request, how: How) -> None:
    """Look at a folder in which nothing was begun before anything is made or removed there."""
    folder = request.out_path
    if how.finalises and how.restart:
        raise InputError(
            "--finalise makes a model of units that are done, and --restart throws them away: "
            "leave out one of the two."
        )
    if how.only is None or how.restart or WorkFolder(folder).exists:
        return
    if asked.holds_model(folder):
        with _without_trace(request) as looking:
            plan = plan_of(looking.job(how.workers))
        asked.check_counts_stay(str(folder), plan)
        asked.check_finished(folder, request.text, plan)
    if how.finalises:
        raise InputError(
            f"output folder {folder}: no unfinished merge lies in it, so that there is nothing to "
            "finalise. Begin one by the same command without --finalise, or give its folder."
        )


def _merge(request: Request, how: How) -> bool:
    work = WorkFolder(request.out_path)
    job = request.job(how.workers)
    with ExitStack() as held:
        if how.only is None:
            held.callback(lock_folder(job.out_path).release)
        driver = Driver(job, how, held, request.inputs)
        try:
            with handover.sharing_folder(), handover.executed_by(driver.execute):
                run_merge(request.config, str(request.out_path), job.options, request.text)
        except Unfinished:
            return False
        remove(work)
    return True


def estimated(request: Request) -> Estimate:
    """What a merge will take; its adapters are merged for it, since their sizes decide."""
    with _without_trace(request) as looking:
        return estimate(plan_of(looking.job(workers=1)))


@contextmanager
def _without_trace(request: Request) -> Iterator[Request]:
    """The same request, for a look at its plan: what its adapters merge to is gone afterwards."""
    has_adapters = any(model.lora for model in request.config.referenced_models())
    is_kept = (request.out_path / WORK_FOLDER / ADAPTERS).is_dir()
    if not has_adapters or is_kept or request.options.lora_merge_cache:
        yield request
        return
    # On the disk of the output, which has room for models.
    parent = request.out_path.resolve()
    while not parent.is_dir():
        parent = parent.parent
    where = parent if os.access(parent, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix=f"{WORK_FOLDER}-", dir=where) as cache:
        options = request.options.model_copy(update={"lora_merge_cache": cache})
        yield replace(request, options=options)
