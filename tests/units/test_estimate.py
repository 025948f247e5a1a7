"""An estimate is near the truth, whatever the sizes of the tensors are."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml
from mergekit.options import MergeOptions
from models import Trio, forget_loaded_models

from mergekit_ram.units import estimate
from mergekit_ram.units.job import MergeJob, Worker, read_job

MODELS = {
    "many small tensors": {"num_hidden_layers": 40, "hidden_size": 16},
    "few large tensors": {"num_hidden_layers": 1, "hidden_size": 512, "vocab_size": 16_000},
    "both": {"num_hidden_layers": 20, "hidden_size": 128, "vocab_size": 32_000},
}


@pytest.mark.parametrize("sizes", MODELS)
def test_an_estimate_is_within_twice_the_truth(sizes, tmp_path, monkeypatch):
    # Of the processor: other processes of a busy machine take no part in it.
    monkeypatch.setattr(estimate.time, "perf_counter", time.process_time)
    trio = Trio(tmp_path, **MODELS[sizes])
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(yaml.safe_dump(trio.config("ram_plus")))
    options = MergeOptions(quiet=True, lora_merge_cache=str(tmp_path / "cache"))
    job = read_job(recipe, tmp_path / "out", options)
    counting, merging = estimate.predicted_seconds(planned(job))
    forget_loaded_models()
    worker = planned(job)
    truth = []
    for kind in ("count", "shard"):
        started = time.process_time()
        for unit in worker.work.units(kind):
            worker.run(unit.number)()
        truth.append(time.process_time() - started)
    assert truth[0] / 2 < counting < truth[0] * 2
    assert truth[1] / 2 < merging < truth[1] * 2


def planned(job: MergeJob) -> Worker:
    """A worker in a folder that is begun."""
    worker = Worker(job)
    Path(job.out_path).mkdir(exist_ok=True)
    worker.work.begin()
    return worker
