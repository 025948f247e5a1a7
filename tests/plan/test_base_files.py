"""Every file that belongs to the base is in the output folder, or is named."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest
from models import Trio, run_yaml, save_tokenizer, succeed

from mergekit_ram.plan.folder import LOCK_NAME
from mergekit_ram.plan.writing import LARGEST, copy_files

COPIED = [
    "modeling_own.py",
    "configuration_own.py",
    "code/blocks.py",
    "generation_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "1_Pooling/config.json",
    "LICENSE",
]
OF_TOKENIZER = [
    "tokenizer.json",
    "vocab.json",
    "spiece.model",
    "chat_template.jinja",
    "additional_chat_templates/tools.jinja",
]
WEIGHTS = [
    "model-00001-of-00002.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "part.safetensors",
]
LEFT = [
    ".gitattributes",
    "optimizer.pt",
    "training_args.bin",
    "model.gguf",
    "runs/events.out",
    ".cache/huggingface/x.lock",
    "checkpoint-500/config.json",
    "checkpoint-500/model.safetensors",
]


def fill(folder: Path, names: list[str], text: str = "{}") -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def copied(base: Path, out: Path, caplog: pytest.LogCaptureFixture, **how: bool) -> str:
    """The names of what was left behind."""
    out.mkdir(exist_ok=True)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="mergekit_ram"):
        copy_files(base, out, **({"with_tokenizer": True, "quiet": False} | how))
    texts = [record.message.rpartition("from the base: ")[2] for record in caplog.records]
    assert len(texts) < 2
    return "".join(texts)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_all_but_weights_is_copied_and_the_rest_is_named_in_one_line(tmp_path, caplog):
    base, out = fill(tmp_path / "base", [*COPIED, *OF_TOKENIZER, *WEIGHTS, *LEFT]), tmp_path / "out"
    index = '{"weight_map": {"a": "part.safetensors"}}'
    (base / "model.safetensors.index.json").write_text(index)
    left = copied(base, out, caplog)
    assert files(out) == {*COPIED, *OF_TOKENIZER}
    assert left.split(", ") == [
        ".cache",
        ".gitattributes",
        "checkpoint-500",
        "model.gguf",
        "optimizer.pt",
        "runs",
        "training_args.bin",
    ]


def test_a_tokenizer_that_the_merge_makes_is_not_mixed_with_the_base_s(tmp_path, caplog):
    base = fill(tmp_path / "base", [*COPIED, *OF_TOKENIZER])
    assert copied(base, tmp_path / "out", caplog, with_tokenizer=False) == ""
    assert files(tmp_path / "out") == set(COPIED)


def test_large_files_stay_behind_but_tokenizers(tmp_path, caplog):
    base = fill(tmp_path / "base", [])
    base.mkdir()
    for name in ("tokenizer.json", "table.csv"):
        with (base / name).open("wb") as file:
            file.truncate(LARGEST + 1)
    assert copied(base, tmp_path / "out", caplog) == "table.csv"
    assert files(tmp_path / "out") == {"tokenizer.json"}


def test_nothing_is_overwritten_and_a_file_that_differs_is_named(tmp_path, caplog):
    base = fill(tmp_path / "base", ["own.py", "README.md", "same.py"], "base")
    out = fill(tmp_path / "out", ["own.py", "same.py"], "base")
    (out / "own.py").write_text("earlier")
    for name in ("own.py", "same.py"):
        os.utime(out / name, (1, 1))
    (out / LOCK_NAME).touch()
    (out / "README.md").write_text("written by this merge")
    assert copied(base, out, caplog) == "own.py"
    assert (out / "own.py").read_text() == "earlier"
    assert (out / "README.md").read_text() == "written by this merge"


def test_a_file_that_cannot_be_copied_is_named(tmp_path, caplog, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    base = fill(tmp_path / "base", ["own.py"])
    monkeypatch.setattr(shutil, "copyfile", refuse)
    assert copied(base, tmp_path / "out", caplog) == "own.py (Permission denied)"


def test_links_out_of_the_folder_are_followed_in_a_hub_s_cache_alone(tmp_path, caplog):
    fill(tmp_path, ["secret.txt"], "secret")
    base = fill(tmp_path / "base", ["inside.txt"])
    (base / "link.txt").symlink_to(tmp_path / "secret.txt")
    (base / "below.txt").symlink_to(base / "inside.txt")
    (base / "loop.txt").symlink_to(base / "loop.txt")
    (base / "elsewhere").symlink_to(tmp_path)
    os.mkfifo(base / "fifo")
    assert copied(base, tmp_path / "out", caplog) == "elsewhere, fifo, link.txt, loop.txt"
    assert files(tmp_path / "out") == {"inside.txt", "below.txt"}
    hub = fill(tmp_path / "hub", ["blobs/1", "snapshots/main/config.json"])
    snapshot = hub / "snapshots" / "main"
    (snapshot / "own.py").symlink_to(Path("../../blobs/1"))
    (snapshot / "link.txt").symlink_to(tmp_path / "secret.txt")
    assert copied(snapshot, tmp_path / "hub_out", caplog) == "link.txt"
    assert files(tmp_path / "hub_out") == {"config.json", "own.py"}
    assert not (tmp_path / "hub_out" / "own.py").is_symlink()


def test_links_in_the_output_folder_lead_nowhere(tmp_path, caplog):
    base = fill(tmp_path / "base", ["a.py", "code/b.py"])
    (tmp_path / "other").mkdir()
    out = fill(tmp_path / "out", [])
    out.mkdir()
    (out / "a.py").symlink_to(tmp_path / "other" / "a.py")
    (out / "code").symlink_to(tmp_path / "other")
    assert copied(base, out, caplog) == "a.py, code/b.py"
    assert files(tmp_path / "other") == set()


@pytest.mark.parametrize(
    "changes", [{}, {"tokenizer": {"source": "base"}}, {"chat_template": "chatml"}]
)
def test_a_merge_has_the_base_s_code_processors_and_stop_tokens(trio: Trio, caplog, changes):
    base, out = Path(trio.base_path), trio.folder / "out"
    fill(base, ["modeling_own.py", "processor_config.json", ".gitattributes"])
    (base / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    for name in ("base", "coder", "tool", "memory"):
        save_tokenizer(trio.folder / name)
    with caplog.at_level(logging.INFO, logger="mergekit_ram"):
        succeed(run_yaml(trio.config("ram", **changes), out))
    assert {"modeling_own.py", "processor_config.json", "tokenizer.json"} <= files(out)
    assert "[1, 2]" in (out / "generation_config.json").read_text()
    (line,) = [r.message for r in caplog.records if "not copied" in r.message]
    assert line == f"output folder {out}: not copied from the base: .gitattributes"
