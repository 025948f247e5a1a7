"""Fifth law: a message names the cause that was found, never one that was guessed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from architecture_parts import COMMON, HEAD, causal
from architectures import ARCHITECTURES
from families import Family
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mergekit_ram.models.unreadable import SIGNS

WEIGHTS = "model.safetensors"
CHECKPOINTS = {
    "verl": (
        ["model_world_size_2_rank_0.pt", "optim_world_size_2_rank_0.pt"],
        "python -m verl.model_merger merge --backend fsdp --local_dir {folder} --target_dir",
    ),
    "verl, one folder below": (
        ["actor/model_world_size_2_rank_0.pt"],
        "python -m verl.model_merger merge --backend fsdp --local_dir {folder}/actor ",
    ),
    "DeepSpeed": (
        ["zero_to_fp32.py", "latest", "global_step9/mp_rank_00_model_states.pt"],
        "python {folder}/zero_to_fp32.py {folder} FOLDER",
    ),
    "Megatron": (["latest_checkpointed_iteration.txt", "iter_0000009/x.pt"], "Megatron Bridge"),
    "Accelerate": (
        ["pytorch_model_fsdp_0/__0_0.distcp", "pytorch_model_fsdp_0/.metadata"],
        "accelerate merge-weights {folder}/pytorch_model_fsdp_0 FOLDER",
    ),
    "torch": (
        [".metadata", "__0_0.distcp"],
        "python -m torch.distributed.checkpoint.format_utils dcp_to_torch {folder} FILE",
    ),
    "llama.cpp": (["model.gguf"], "Give this model as it is loaded by transformers"),
    "Mistral": (["consolidated.safetensors", "params.json"], "its original, or the converted one."),
    "below": (
        [f"checkpoint-500/{WEIGHTS}", "checkpoint-500/config.json"],
        "such as {folder}/checkpoint-500.",
    ),
    "adapter": (
        ["adapter_config.json", "adapter_model.safetensors"],
        "with the base that it was trained on.",
    ),
}


def put(folder: Path, files: list[str]) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


@pytest.fixture(scope="module")
def family(tmp_path_factory) -> Family:
    return Family(tmp_path_factory.mktemp("causes"))


@pytest.mark.parametrize("has_configuration", [False, True])
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_training_checkpoint_is_named_with_its_converter(family, kind, has_configuration):
    files, converter = CHECKPOINTS[kind]
    folder = family.path(f"{kind} {has_configuration}".replace(",", ""))
    put(folder, files)
    if has_configuration:
        shutil.copy(family.path("base") / "config.json", folder)
    line = family.refusal(models=[{"model": str(folder)}])
    assert line.startswith(f"Error: model {folder}: the folder {folder} holds ")
    assert converter.format(folder=folder) in line
    assert "Repair" not in line


def test_the_configuration_that_verl_puts_beside_its_shards_is_no_model(family):
    actor = family.path("actor")
    put(actor, CHECKPOINTS["verl"][0])
    (actor / "huggingface").mkdir()
    shutil.copy(family.path("base") / "config.json", actor / "huggingface")
    line = family.refusal(models=[{"model": str(actor / "huggingface")}])
    assert f"--backend fsdp --local_dir {actor} --target_dir FOLDER" in line


@pytest.mark.parametrize("architecture", ["Qwen2", "Qwen3-MoE", "Qwen2.5-VL"])
def test_empty_weights_of_deepspeed_are_told_as_such(tmp_path, architecture):
    family = Family(tmp_path, architecture)
    family.write("tool", {name: t.flatten()[:0] for name, t in family.agents["tool"].items()})
    assert "empty (" in family.refusal()
    put(family.path("tool"), ["zero_to_fp32.py"])
    assert "zero_to_fp32.py" in family.refusal()


def test_a_damaged_file_is_said_to_be_damaged_whatever_lies_beside_it(tmp_path):
    family = Family(tmp_path)
    put(family.path("tool"), ["zero_to_fp32.py", WEIGHTS])
    line = family.refusal()
    assert line.startswith(f"Error: model {family.path('tool')}: cannot read ")
    assert line.endswith("Repair or re-download this checkpoint.")


def test_a_pickle_of_more_than_weights_is_not_said_to_be_damaged(tmp_path):
    family = Family(tmp_path)
    folder, own = family.path("tool"), family.agents["tool"]
    (folder / WEIGHTS).unlink()
    for content, said in (
        (torch.nn.Linear(2, 2), "pickles other objects than tensors, whose code is not run. Save "),
        ({"module": own, "epoch": 3}, "its weights lie under 'module'. Save that part alone."),
    ):
        torch.save(content, folder / "pytorch_model.bin")
        assert said in family.refusal()


def test_packed_experts_that_are_stored_transposed_are_refused(tmp_path, monkeypatch):
    square = COMMON | HEAD | {"intermediate_size": 32}
    made = causal("GptOss", **square, num_local_experts=4, num_experts_per_tok=2)
    monkeypatch.setitem(ARCHITECTURES, "square experts", made)
    family = Family(tmp_path, "square experts")
    name = "model.layers.0.mlp.experts.down_proj"
    own = family.agents["tool"]
    family.merge()
    family.write("tool", own | {name: own[name].mT.contiguous()})
    shutil.rmtree(family.path("out"))
    assert family.refusal().startswith(
        f"Error: model {family.path('tool')}: tensor {name} is stored transposed: its first matrix "
        "is nearer to the base's when it is turned over."
    )


def test_an_agent_that_equals_its_base_may_lack_its_adapter(tmp_path):
    family = Family(tmp_path)
    family.write("tool", family.base)
    found = family.findings()["equals-base"]
    assert str(family.path("tool")) in found
    assert found.endswith("such a folder is often an export without its LoRA adapter.")


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(sorted(CHECKPOINTS)),
    others=st.sets(
        st.sampled_from(["README.md", "rng_state_0.pth", "runs/x", "vocab.json", "a.bin"])
    ),
    number=st.integers(0, 10**9),
)
def test_what_lies_beside_a_checkpoint_does_not_hide_it(family, kind, others, number):
    folder = family.path(f"random {number}")
    shutil.rmtree(folder, ignore_errors=True)
    put(folder, [*CHECKPOINTS[kind][0], *others])
    line = family.run(models=[{"model": str(folder)}]).output.splitlines()[-1]
    assert CHECKPOINTS[kind][1].format(folder=folder) in line


def test_every_sign_is_tested():
    assert len(SIGNS) == len(CHECKPOINTS) - 2  # two signs have two cases
