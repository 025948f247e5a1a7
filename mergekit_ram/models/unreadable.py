"""Errors about folders and files in which no model can be read: the cause that was found there."""

from __future__ import annotations

import glob
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mergekit_ram.errors import InputError, one_line
from mergekit_ram.text import some

ADAPTER_CONFIG = "adapter_config.json"
LFS_MARK = b"version https://git-lfs"

OTHER_OBJECTS = "Unsupported global"
"""torch says so of a pickle that is more than tensors."""

VERL_SHARDS = "model_world_size_*_rank_*.pt"
DESCRIPTIONS = ("model.safetensors", "pytorch_model.bin", "*.index.json")
OTHER_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt", "*.pth")


class NestedWeightsError(ValueError):
    """A pickle holds its weights below a key."""


@dataclass(frozen=True)
class Sign:
    """Files in a folder by which it is known to hold no model that transformers loads.

    Attributes:
        patterns: of the files, from the folder on.
        content: of the folder, in words.
        remedy: names the converter; ``{folder}`` is where the files lie, ``{base}`` the base of an
            adapter, ``{model}`` the model as it was given.
    """

    patterns: Sequence[str]
    content: str
    remedy: str


SIGNS = (
    Sign(
        (ADAPTER_CONFIG,),
        "an adapter",
        "Write base and adapter together: `model: {base}+{model}`, with the base that it was "
        "trained on.",
    ),
    Sign(
        (VERL_SHARDS, f"*/{VERL_SHARDS}", f"*/*/{VERL_SHARDS}", f"../{VERL_SHARDS}"),
        "FSDP shards of verl",
        "Convert it: python -m verl.model_merger merge --backend fsdp --local_dir {folder} "
        "--target_dir FOLDER.",
    ),
    Sign(
        ("zero_to_fp32.py", "*/zero_to_fp32.py"),
        "a training checkpoint of DeepSpeed",
        "Convert it: python {folder}/zero_to_fp32.py {folder} FOLDER --safe_serialization, and "
        "copy the base's config.json beside the weights.",
    ),
    Sign(
        ("latest_checkpointed_iteration.txt", "mp_rank_*", "iter_*", "common.pt", "*/common.pt"),
        "a training checkpoint of Megatron",
        "Convert it to the Hugging Face format with the tools that it was trained with (Megatron "
        "Bridge's export_ckpt, verl.model_merger --backend megatron).",
    ),
    Sign(
        ("pytorch_model_fsdp_*/*.distcp",),
        "FSDP shards of Accelerate",
        "Convert them: accelerate merge-weights {folder} FOLDER, and copy the base's config.json "
        "beside the weights.",
    ),
    Sign(
        ("*.distcp", "*/*.distcp", ".metadata"),
        "a checkpoint of torch.distributed.checkpoint",
        "Convert it: python -m torch.distributed.checkpoint.format_utils dcp_to_torch {folder} "
        "FILE, and save what it holds with save_pretrained.",
    ),
    Sign(
        ("*.gguf", "consolidated*.pth", "consolidated*.safetensors"),
        "weights in another format",
        "Give this model as it is loaded by transformers: its original, or the converted one.",
    ),
    Sign(
        tuple(f"*/{name}" for name in DESCRIPTIONS),
        "weights one folder below",
        "Give the folder of the weights, such as {folder}.",
    ),
)
"""In the order in which they are looked for: who finds an earlier one needs no later one."""


def broken(
    model: str,
    path: str | Path,
    problem: object,
    remedy: str = "Repair or re-download this checkpoint.",
) -> InputError:
    """The error about a file of a model that cannot be read."""
    return InputError(f"model {model}: cannot read {path}: {problem}. {remedy}")


def broken_file(model: str, path: Path, error: Exception) -> InputError:
    """The error about a file of weights at which its reader has failed."""
    with path.open("rb") as file:
        is_pointer = file.read(len(LFS_MARK)) == LFS_MARK
    if is_pointer:
        return broken(
            model, path, "it is a pointer of Git LFS and no weights", "Run `git lfs pull`."
        )
    if isinstance(error, NestedWeightsError):
        return broken(model, path, error, "Save that part alone.")
    if OTHER_OBJECTS in str(error):
        problem = "it pickles other objects than tensors, whose code is not run"
        return broken(model, path, problem, "Save the weights alone (save_pretrained).")
    return broken(model, path, one_line(error))


def no_model(model: str, root: Path, path: Path, problem: str) -> InputError:
    """The error about a folder that lacks a file of a model: what lies there instead.

    Args:
        model: as the configuration names it.
        root: the folder.
        path: that is missing in it, or the folder itself.
        problem: with it, where the folder has no sign of anything else.
    """
    for sign in SIGNS:
        found = sorted(file for name in sign.patterns for file in glob.glob(name, root_dir=root))
        if found:
            folder = (root / found[-1]).resolve().parent
            remedy = sign.remedy.format(folder=folder, base=_base_of(root), model=model)
            return InputError(
                f"model {model}: the folder {root} holds {sign.content} ({some(found)}) and no "
                f"whole model. {remedy}"
            )
    return broken(model, path, problem)


def other_weights(root: Path) -> str:
    """Words on a folder without the files in which transformers looks for weights."""
    others = sorted(file.name for pattern in OTHER_WEIGHTS for file in root.glob(pattern))
    missing = "it has no model.safetensors or pytorch_model.bin, whole or with an index"
    return f"{missing}, only {some(others)}" if others else missing


def _base_of(root: Path) -> str:
    """The base of an adapter, by its own configuration."""
    try:
        settings = json.loads((root / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        return str(settings["base_model_name_or_path"])
    except (OSError, ValueError, LookupError, TypeError):
        return "BASE"
