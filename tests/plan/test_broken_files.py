"""Whatever is wrong with a file, a merge ends in one line that says what to do."""

from __future__ import annotations

import json
import logging
import shutil

import pytest
import torch
from families import Family, assert_weights
from safetensors.torch import save_file

REMEDY = "Repair or re-download this checkpoint."
KNOWN_AND_DETECTED = pytest.mark.parametrize("architecture", ["Qwen2", "Olmo"])
NAMES = pytest.mark.parametrize("name", ["base", "tool"])


@KNOWN_AND_DETECTED
@NAMES
@pytest.mark.parametrize("value", [None, [], ["A", "B"]])
def test_a_configuration_without_one_architecture(tmp_path, architecture, name, value):
    family = Family(tmp_path, architecture)
    family.configure(name, architectures=value)
    file = family.path(name) / "config.json"
    line = family.refusal()
    assert line.startswith(f"Error: model {family.path(name)}: `architectures` in {file} has to ")
    assert "name one class of transformers" in line


@pytest.mark.parametrize(
    "text", ["", "[]", "nothing", '{"model_type": "of_nobody", "architectures": ["X"]}', "\0\1"]
)
def test_a_configuration_that_is_none(tmp_path, text):
    family = Family(tmp_path)
    file = family.path("tool") / "config.json"
    file.write_text(text)
    line = family.refusal()
    assert line.startswith(f"Error: model {family.path('tool')}: ")
    assert str(file) in line
    assert REMEDY.split(" this")[0] in line


@NAMES
@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", b"<html>Not found</html>"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        ("pytorch_model.bin", b"<html>Not found</html>"),
        ("pytorch_model.bin", b"\x80\x04."),
        ("model.safetensors.index.json", b"{}"),
        ("model.safetensors.index.json", b'{"weight_map": []}'),
        ("model.safetensors.index.json", b'{"weight_map": {"a": 3}}'),
        ("pytorch_model.bin.index.json", b"null"),
    ],
)
def test_something_else_in_place_of_weights(tmp_path, name, file, content):
    family = Family(tmp_path)
    folder = family.path(name)
    (folder / "model.safetensors").unlink()
    (folder / file).write_bytes(content)
    line = family.refusal()
    assert line.startswith(f"Error: model {folder}: cannot read {folder}")
    is_pointer = b"git-lfs" in content
    pointer = "it is a pointer of Git LFS and no weights. Run `git lfs pull`."
    assert line.endswith(pointer if is_pointer else REMEDY)


def test_a_pickle_of_something_else(tmp_path):
    family = Family(tmp_path)
    folder = family.path("tool")
    (folder / "model.safetensors").unlink()
    for content in ([1, 2], {"state_dict": family.agents["tool"]}, {"epoch": 3}):
        torch.save(content, folder / "pytorch_model.bin")
        line = family.refusal()
        assert line.startswith(f"Error: model {folder}: ")
    torch.save({"state_dict": family.agents["tool"]}, folder / "pytorch_model.bin")
    assert "its weights lie under 'state_dict'. Save that part alone." in family.refusal()


def test_weights_under_another_name_are_told(tmp_path):
    family = Family(tmp_path)
    folder = family.path("tool")
    shutil.move(folder / "model.safetensors", folder / "model.fp16.safetensors")
    assert family.refusal() == (
        f"Error: model {folder}: cannot read {folder}: Unable to find model files: it has no "
        "model.safetensors or pytorch_model.bin, whole or with an index, only "
        f"model.fp16.safetensors. {REMEDY}"
    )


def cache(family: Family, *, weights: bool) -> tuple[str, str]:
    """A model in the hub's cache, and where it lies."""
    root = family.folder / "hub" / "models--someone--tool"
    snapshot = root / "snapshots" / ("0" * 39 + "1")
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(snapshot.name)
    for file in family.path("tool").iterdir():
        if weights or file.suffix != ".safetensors":
            shutil.copy(file, snapshot / file.name)
    return "someone/tool", str(snapshot)


@pytest.mark.parametrize("weights", [True, False])
def test_a_name_of_the_hub_without_a_network(tmp_path, monkeypatch, weights):
    family = Family(tmp_path)
    name, snapshot = cache(family, weights=weights)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    line = family.refusal("--transformers-cache", str(tmp_path / "hub"), models=[{"model": name}])
    assert "someone/tool" in line
    assert "A local folder is written as ./folder" in line or snapshot in line


def test_the_folder_of_a_download_is_merged(tmp_path):
    family = Family(tmp_path)
    _, snapshot = cache(family, weights=True)
    models = [{"model": str(family.path("coder"))}, {"model": snapshot}]
    assert_weights(family.merge(models=models), family.expected())


def test_a_reader_that_fails_in_a_new_way_ends_in_one_line(tmp_path, monkeypatch):
    family = Family(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise ArithmeticError("the moon\nis full")

    monkeypatch.setattr("mergekit.io.lazy_tensor_loader.TensorLoader.get", fail)
    result = family.run()
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert result.output.splitlines()[-1].startswith(f"Error: model {tmp_path}/")
    assert "cannot be read: the moon is full. Repair or re-download" in result.output
    assert not (family.path("out") / "config.json").exists()
    looked = family.inspect()
    assert looked.exit_code == 1
    assert "cannot be read: the moon is full." in looked.output


@pytest.mark.parametrize("method", ["ram", "ram_plus"])
def test_an_unforeseen_failure_ends_in_one_line_and_its_traceback_is_logged(
    tmp_path, monkeypatch, caplog, method
):
    family = Family(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise LookupError("nobody thought of this")

    monkeypatch.setattr("mergekit.merge._model_out_config", fail)
    with caplog.at_level(logging.INFO, logger="mergekit_ram"):
        result = family.run(merge_method=method)
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert result.output.splitlines()[-1] == (
        "Error: the merge failed: LookupError nobody thought of this. The option -v shows where."
    )
    (logged,) = [record for record in caplog.records if record.exc_info]
    assert logged.getMessage().startswith("the merge failed: LookupError")
    assert not family.path("out").exists()


def test_a_configuration_of_another_size_than_its_weights(tmp_path):
    family = Family(tmp_path, "Llama")
    family.configure("tool", num_hidden_layers=5)
    line = family.refusal()
    assert line.startswith(
        "Error: by their config.json the models have different numbers of layers: "
        f"{family.path('base')} 2, {family.path('coder')} 2, {family.path('tool')} 5. "
    )


def test_tensors_that_are_no_weights_are_no_matter(tmp_path):
    family = Family(tmp_path)
    own = family.agents["tool"]
    save_file(own | {"step": torch.tensor([3])}, family.path("tool") / "model.safetensors")
    (family.path("tool") / "trainer_state.json").write_text(json.dumps({"step": 3}))
    assert_weights(family.merge(), family.expected())
