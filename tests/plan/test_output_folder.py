"""What is in an output folder is the whole merge, or no model."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import yaml
from models import Trio, read_weights, run_yaml, succeed
from refusals import BOTH, assert_not_loadable, refusal

from mergekit_ram.errors import InputError
from mergekit_ram.plan.folder import check_output
from mergekit_ram.record.schema import WORK_FOLDER


def refused(folder: Path, size: int = 0, inputs: Sequence[str] = ()) -> str:
    with pytest.raises(InputError) as error:
        check_output(str(folder), size, inputs)
    return str(error.value)


@BOTH
def test_a_disk_without_room_is_refused_before_the_long_passes(trio: Trio, method, monkeypatch):
    usage = shutil.disk_usage(trio.folder)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    line = refusal(trio, method)
    assert line.startswith(f"Error: output folder {trio.folder / 'out'}: the merged weights take")
    assert "and 0.0 MB are free. Make room, choose another folder" in line


def test_a_folder_that_cannot_be_made(trio: Trio):
    # The superuser may write everywhere; a file in the way is in his as well.
    file = trio.folder / "out"
    file.touch()
    line = run_yaml(trio.config("ram"), file, "--no-copy-tokenizer").output.splitlines()[-1]
    assert line.startswith(f"Error: output folder {file}: it cannot be written to: ")
    assert line.endswith("Choose another one.")


@pytest.mark.parametrize("name", ["base", "tool"])
def test_an_output_folder_that_is_an_input(trio: Trio, name):
    before = (trio.folder / name / "model.safetensors").read_bytes()
    result = run_yaml(trio.config("ram"), trio.folder / name, "--no-copy-tokenizer")
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == (
        f"Error: output folder {trio.folder / name}: it is also the folder of a model that is "
        "merged, and would be overwritten while it is read. Choose another one."
    )
    assert (trio.folder / name / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("dtypes", [{}, {"dtype": "float32"}, {"out_dtype": "float64"}])
def test_the_size_of_the_output_is_known_before(trio: Trio, monkeypatch, dtypes):
    from mergekit_ram.plan import folder

    seen = []
    monkeypatch.setattr(folder, "check_output", lambda path, size, inputs: seen.append(size))
    written = trio.merge("ram_plus", **dtypes)
    assert seen == [sum(tensor.numel() * tensor.itemsize for tensor in written.values())]


INTERRUPTED = """
import os, resource, signal, sys
from click.testing import CliRunner
from mergekit.io.tasks import SaveTensor
from mergekit.scripts.run_yaml import main

recipe, out, how = sys.argv[1:]
if how == "disk full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
else:
    saves, save = [], SaveTensor.execute
    def counted(self, **arguments):
        saves.append(self)
        if len(saves) == int(how):
            os.kill(os.getpid(), signal.SIGKILL)
        return save(self, **arguments)
    SaveTensor.execute = counted
main([recipe, out, "--no-copy-tokenizer", "--out-shard-size", "30K"])
"""


@pytest.mark.parametrize(
    ("method", "how"),
    [("ram", "disk full"), ("ram", "1"), ("ram_plus", "26")],
)
def test_interrupted_at_any_moment_nothing_loads(trio: Trio, method, how):
    recipe, out = trio.folder / "recipe.yml", trio.folder / "out"
    recipe.write_text(yaml.safe_dump(trio.config(method)))
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(recipe), str(out), how],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert result.returncode == (1 if how == "disk full" else -signal.SIGKILL), result.stderr
    if how == "disk full":
        (line,) = (line for line in result.stderr.splitlines() if line.startswith("Error"))
        assert line.startswith(f"Error: output folder {out}: writing failed: ")
        assert line.endswith("what was written so far is no complete model and does not load.")
        assert "Traceback" not in result.stderr
    assert not (out / "config.json").exists()
    assert not (out / "model.safetensors.index.json").exists()
    assert_not_loadable(out)


REPLACED = """
import os, signal, sys
from click.testing import CliRunner
from mergekit.scripts.run_yaml import main

recipe, out, renames = sys.argv[1:]
rename, done = os.rename, []
def counted(old, new):
    done.append(old)
    if len(done) == int(renames):
        os.kill(os.getpid(), signal.SIGKILL)
    rename(old, new)
os.rename = counted
main([recipe, out, "--no-copy-tokenizer", "--out-shard-size", "30K"])
"""


@pytest.mark.parametrize(("method", "renames"), [("ram_plus", "1"), ("ram", "2")])
def test_an_interrupted_merge_leaves_no_mixture_with_an_earlier_one(trio: Trio, method, renames):
    out = trio.folder / "out"
    succeed(run_yaml(trio.config("ram"), out, "--no-copy-tokenizer", "--out-shard-size", "30K"))
    recipe = trio.folder / "recipe.yml"
    recipe.write_text(yaml.safe_dump(trio.config(method, parameters={"scale": 0.5})))
    result = subprocess.run(
        [sys.executable, "-c", REPLACED, str(recipe), str(out), renames],
        capture_output=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert result.returncode == -signal.SIGKILL
    assert_not_loadable(out)


@pytest.mark.parametrize("method", ["ram_plus"])
def test_a_merge_replaces_an_earlier_one_of_other_shards(trio: Trio, method, caplog):
    out = trio.folder / "out"
    options = ["--no-copy-tokenizer", "--out-shard-size", "30K"]
    succeed(run_yaml(trio.config("ram", parameters={"scale": 0.5}), out, *options))
    assert len(list(out.glob("*.safetensors"))) > 1
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        succeed(run_yaml(trio.config(method), out, "--no-copy-tokenizer"))
    (message,) = [r.message for r in caplog.records if r.levelno >= logging.WARNING]
    assert message.startswith(f"output folder {out}: replacing the model in it (config.json, ")
    assert [file.name for file in out.glob("*.safetensors*")] == ["model.safetensors"]
    fresh = trio.merge(method)
    assert all(torch.equal(read_weights(out)[name], fresh[name]) for name in fresh)


def test_a_folder_with_an_unfinished_merge_is_refused_with_both_ways_out(trio: Trio):
    out = trio.folder / "out"
    work = out / WORK_FOLDER
    work.mkdir(parents=True)
    (work / "unit").touch()
    line = run_yaml(trio.config("ram"), out, "--no-copy-tokenizer").output.splitlines()[-1]
    assert line == (
        f"Error: output folder {out}: an unfinished `mergekit-ram merge` lies in it. Resume it by "
        f"the same command, or remove {work} to give it up."
    )
    assert [*out.iterdir()] == [work]
    shutil.rmtree(work)
    succeed(run_yaml(trio.config("ram"), out, "--no-copy-tokenizer"))
