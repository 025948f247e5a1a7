"""What an earlier model left in the output folder and would change how the merge loads."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mergekit_ram.record.schema import RECORD_NAME

LOG = logging.getLogger("mergekit_ram")

MARKS = ("config.json", "adapter_config.json")
"""The files that make a folder a model or an adapter."""

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SHARD_ENDINGS = (".safetensors", ".bin", ".pt", ".pth")

WEIGHTS = (
    "model.safetensors",
    "model-*.safetensors",
    "model.*.safetensors",
    "pytorch_model.bin",
    "pytorch_model-*.bin",
    "pytorch_model.*.bin",
    "consolidated*.safetensors",
    "consolidated*.pth",
    "tf_model*.h5",
    "flax_model*.msgpack",
    "adapter_model*.safetensors",
    "adapter_model*.bin",
)

SETTINGS = (
    "generation_config.json",
    "hf_quant_config.json",
    "quant_config.json",
    "quantize_config.json",
)

TOKENIZER = (
    "tokenizer*.json",
    "tokenizer.model*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*.json",
    "chat_template*.jinja",
    "additional_chat_templates/*.jinja",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "bpe.codes",
    "tekken.json",
    "*.tiktoken",
    "*.spm",
    "spiece.model",
    "spm.model",
    "spm_char.model",
    "sentencepiece.model",
    "sentencepiece.bpe.model",
)
"""What AutoTokenizer takes from a folder, of whichever class."""

PROCESSORS = (
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "audio_tokenizer_config.json",
)

PATTERNS = (*MARKS, *INDEXES, *WEIGHTS, RECORD_NAME, *SETTINGS, *TOKENIZER, *PROCESSORS)


def remove_earlier_model(folder: Path) -> None:
    """Remove what transformers, PEFT and others would load from a folder; the rest stays.

    The files that make it a model go first, so that it is none whenever this is interrupted.
    """
    old = list(dict.fromkeys(_loaded_files(folder)))
    if old:
        LOG.warning(
            "output folder %s: replacing the model in it (%s)",
            folder,
            ", ".join(str(file.relative_to(folder)) for file in old),
        )
    for file in old:
        file.unlink()
    with suppress(OSError):
        (folder / "additional_chat_templates").rmdir()


def _loaded_files(folder: Path) -> Iterator[Path]:
    listed = list(_indexed_files(folder))
    for pattern in PATTERNS:
        yield from filter(_is_file, sorted(folder.glob(pattern)))
    yield from listed


def _indexed_files(folder: Path) -> Iterator[Path]:
    """Shards of any name, as far as they lie in the folder itself."""
    for index in INDEXES:
        try:
            shards = json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"]
            names = sorted(set(shards.values()))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
        for name in names:
            # An index may name anything: nothing else is removed, and nothing elsewhere.
            if isinstance(name, str) and name == Path(name).name and name.endswith(SHARD_ENDINGS):
                yield from filter(_is_file, [folder / name])


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()
