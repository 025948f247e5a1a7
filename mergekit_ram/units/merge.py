"""A whole merge by units of work."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
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
from mergekit_ram.units.driver import Driver, How, Unfinished, remove
from mergekit_ram.units.estimate import Estimate, estimate
from mergekit_ram.units.manifest import WORK_FOLDER, WorkFolder
from mergekit_ram.units.work import Job, plan_of

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
    recipe = read_recipe(config_file)
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
            another process is at work in it.
    """
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
    return estimate(plan_of(request.job(workers=1)))
