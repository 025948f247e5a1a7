"""One merge at a time writes to a folder, from one set of inputs."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import yaml
from mergekit.config import MergeConfiguration
from mergekit.io.tasks import SaveTensor
from mergekit.merge import run_merge
from mergekit.options import MergeOptions
from models import Trio, read_weights, run_yaml, succeed, tiny_config
from refusals import BOTH, assert_not_loadable
from transformers import AutoModelForCausalLM

from mergekit_ram.errors import InputError
from mergekit_ram.plan.folder import LOCK_NAME, FolderInUse, lock_folder

PATIENCE = 120
"""Seconds until another process must have come to a point."""

WAITING = """
import pathlib, sys, time
from mergekit.io.tasks import SaveTensor
from mergekit.scripts.run_yaml import main

recipe, out, started, go = sys.argv[1:]
save = SaveTensor.execute
def waiting(self, **arguments):
    pathlib.Path(started).touch()
    while not pathlib.Path(go).exists():
        time.sleep(0.02)
    return save(self, **arguments)
SaveTensor.execute = waiting
main([recipe, out, "--no-copy-tokenizer"])
"""


def wait_for(path: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.02)


def start(trio: Trio, out: Path) -> subprocess.Popen[bytes]:
    """A merge in another process that waits before its first weight is saved."""
    recipe = trio.folder / "first.yml"
    recipe.write_text(yaml.safe_dump(trio.config("ram", parameters={"scale": 0.5})))
    marks = [str(trio.folder / mark) for mark in ("started", "go")]
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(recipe), str(out), *marks],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    wait_for(trio.folder / "started")
    return process


def test_a_second_process_is_refused_and_the_first_one_ends_whole(trio: Trio):
    out = trio.folder / "out"
    process = start(trio, out)
    before = sorted(out.iterdir())
    result = run_yaml(trio.config("ram_plus"), out, "--no-copy-tokenizer")
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == (
        f"Error: output folder {out}: another merge is writing to it. Wait until it is done, or "
        "choose another folder."
    )
    assert "Counting" not in result.output
    assert sorted(out.iterdir()) == before
    (trio.folder / "go").touch()
    assert process.wait(PATIENCE) == 0
    assert not (out / LOCK_NAME).exists()
    half = trio.merge("ram", parameters={"scale": 0.5})
    assert all(torch.equal(tensor, half[name]) for name, tensor in read_weights(out).items())


def test_the_lock_of_a_killed_process_is_in_nobodys_way(trio: Trio):
    out = trio.folder / "out"
    process = start(trio, out)
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)
    assert (out / LOCK_NAME).exists()
    succeed(run_yaml(trio.config("ram"), out, "--no-copy-tokenizer"))
    assert not (out / LOCK_NAME).exists()


def merge_here(trio: Trio, out: Path, method: str = "ram_plus", **changes: object) -> None:
    config = MergeConfiguration.model_validate(trio.config(method, **changes))
    run_merge(config, str(out), MergeOptions(copy_tokenizer=False, quiet=True))


def test_a_second_thread_is_refused(trio: Trio, monkeypatch):
    out = trio.folder / "out"
    started, go = threading.Event(), threading.Event()
    save = SaveTensor.execute

    def waiting(self: SaveTensor, **arguments: object) -> None:
        started.set()
        assert go.wait(PATIENCE)
        save(self, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SaveTensor, "execute", waiting)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(merge_here, trio, out)
        assert started.wait(PATIENCE)
        with pytest.raises(InputError, match="another merge is writing to it"):
            # By another spelling of its path.
            merge_here(trio, out.parent / "." / "base" / ".." / "out")
        go.set()
        first.result()
    assert (out / "config.json").exists()


def test_a_merge_that_failed_holds_nothing(trio: Trio, monkeypatch):
    out = trio.folder / "out"

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no reason")

    with ThreadPoolExecutor(2) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(SaveTensor, "execute", fail)
            error = pool.submit(merge_here, trio, out).exception()
        assert "no reason" in str(error)
        # The error, its thread and its tasks are all alive.
        barrier = threading.Barrier(2)
        both = [pool.submit(meet_and_merge, barrier, trio, out) for _ in range(2)]
        errors = [done.exception() for done in both]
    assert None in errors
    assert all("another merge is writing" in str(error) for error in errors if error)
    assert (out / "config.json").exists()
    assert not (out / LOCK_NAME).exists()


def meet_and_merge(barrier: threading.Barrier, trio: Trio, out: Path) -> None:
    barrier.wait(PATIENCE)
    merge_here(trio, out)


def test_a_folder_that_was_made_for_nothing_goes_again(tmp_path):
    lock = lock_folder(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b" / LOCK_NAME).exists()
    lock.close()
    assert not (tmp_path / "a").exists()


def test_a_pipe_in_the_place_of_the_lock_is_refused(tmp_path):
    os.mkfifo(tmp_path / LOCK_NAME)
    with pytest.raises(InputError, match=f"{tmp_path / LOCK_NAME} is no regular file"):
        lock_folder(str(tmp_path))


def test_tasks_share_a_folder_and_the_last_one_removes_the_lock(tmp_path):
    out = tmp_path / "out"
    first, second = (lock_folder(str(out), shared=True) for _ in range(2))
    with pytest.raises(FolderInUse, match="another merge is writing"):
        lock_folder(str(out))
    first.close()
    assert (out / LOCK_NAME).exists()
    second.close()
    assert not (out / LOCK_NAME).exists()


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch, caplog):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock_folder(str(tmp_path / "out")).close()
    assert not (tmp_path / "out").exists()
    (message,) = [record.message for record in caplog.records]
    assert "cannot be locked ([Errno 37] no locks available)" in message


def test_processes_that_lock_and_remove_at_once_are_never_two(tmp_path):
    hammer = subprocess.run(
        [sys.executable, "-c", HAMMER, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert hammer.returncode == 0, hammer.stderr


HAMMER = """
import os, sys
from contextlib import suppress
from mergekit_ram.plan import folder

folder.LOOK_EVERY = 0.001
os.fork(), os.fork()
for _ in range(30):
    with folder.lock_folder(sys.argv[1] + "/out", waits=True):
        os.close(os.open(sys.argv[1] + "/inside", os.O_CREAT | os.O_EXCL))
        os.unlink(sys.argv[1] + "/inside")
status = 0
with suppress(ChildProcessError):
    while True:
        status |= os.wait()[1]
sys.exit(bool(status))
"""


def test_models_can_be_made_after_merges_in_threads(trio: Trio):
    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda n: meet_and_merge(barrier, trio, trio.folder / f"out{n}"), range(2)))
    embedding = AutoModelForCausalLM.from_config(tiny_config()).model.embed_tokens.weight
    assert 0.01 < embedding.std() < 0.03, "weights are not initialised any more"


def test_every_card_of_merges_in_threads_has_its_section(trio: Trio):
    factors = [0.0, 0.1, 0.2, 0.3]

    def card(r: float) -> str:
        out = trio.folder / f"out{r}"
        merge_here(trio, out, parameters={"r": r})
        return (out / "README.md").read_text()

    with ThreadPoolExecutor(4) as pool:
        cards = list(pool.map(card, factors))
    for r, text in zip(factors, cards, strict=True):
        assert f"overlap_power = 1, r = {r:g}, α = 2." in text


@BOTH
@pytest.mark.parametrize("what", ["replaced", "touched", "gone"])
def test_an_input_that_changes_while_it_is_merged_makes_no_model(
    trio: Trio, method, what, monkeypatch
):
    out, weights = trio.folder / "out", trio.folder / "tool" / "model.safetensors"
    saved = SaveTensor.execute

    def changing(self: SaveTensor, **arguments: object) -> None:
        monkeypatch.setattr(SaveTensor, "execute", saved)
        if what == "replaced":
            shutil.copy(trio.folder / "coder" / "model.safetensors", trio.folder / "new")
            os.utime(trio.folder / "new", ns=(weights.stat().st_mtime_ns,) * 2)
            (trio.folder / "new").replace(weights)
        elif what == "touched":
            weights.touch()
        else:
            weights.unlink()
        saved(self, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SaveTensor, "execute", changing)
    result = run_yaml(trio.config(method), out, "--no-copy-tokenizer")
    assert result.exit_code == 1
    words = {"replaced": "has changed", "touched": "has changed"}
    said = result.output.splitlines()[-1]
    assert f"model {trio.folder / 'tool'}: {weights} {words.get(what, 'has gone')} since" in said
    assert "does not load: merge again when nothing writes to the inputs." in said
    assert_not_loadable(out)


def test_an_input_that_changes_while_it_is_counted_costs_no_earlier_model(trio: Trio, monkeypatch):
    from mergekit_ram.plan import tasks

    out = trio.folder / "out"
    succeed(run_yaml(trio.config("ram"), out, "--no-copy-tokenizer"))
    before = read_weights(out)
    count = tasks.count_group

    def touching(*arguments: object, **named: object) -> object:
        (trio.folder / "coder" / "model.safetensors").touch()
        return count(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(tasks, "count_group", touching)
    result = run_yaml(trio.config("ram_plus"), out, "--no-copy-tokenizer")
    assert result.exit_code == 1
    assert "coder/model.safetensors has changed since" in result.output
    assert all(torch.equal(tensor, before[name]) for name, tensor in read_weights(out).items())
    assert (out / "config.json").exists()


CUT = """
import os, sys
from mergekit.io.tasks import SaveTensor
from mergekit.scripts.run_yaml import main

recipe, out, weights = sys.argv[1:]
save = SaveTensor.execute
def cutting(self, **arguments):
    os.truncate(weights, 0)
    return save(self, **arguments)
SaveTensor.execute = cutting
main([recipe, out, "--no-copy-tokenizer"])
"""


def test_a_file_that_is_cut_while_it_is_mapped_leaves_words_and_no_model(tmp_path):
    # Pages that were read stay readable, so there must be more than one of them.
    trio = Trio(tmp_path, hidden_size=256, vocab_size=4096)
    out, recipe = tmp_path / "out", tmp_path / "recipe.yml"
    recipe.write_text(yaml.safe_dump(trio.config("ram")))
    weights = tmp_path / "tool" / "model.safetensors"
    result = subprocess.run(
        [sys.executable, "-c", CUT, str(recipe), str(out), str(weights)],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert result.returncode == -signal.SIGBUS, result.stderr
    assert "Fatal Python error: Bus error" in result.stderr
    assert_not_loadable(out)
