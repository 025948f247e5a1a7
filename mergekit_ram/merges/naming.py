"""A checkpoint's tensors under the names that a plan has for them.

Trainers leave prefixes in names, and transformers has renamed modules since a checkpoint was
written. mergekit goes on doing the loading; it sees the names of the plan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from mergekit.io import LazyTensorLoader, ShardedTensorIndex

from mergekit_ram.errors import InputError, reading
from mergekit_ram.merges.checkpoints import Checkpoint
from mergekit_ram.merges.headers import TensorHeader, read_shard, shard_path
from mergekit_ram.merges.shards import IndexedLoader

WRAPPERS_ANYWHERE = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""Left by torch.compile, FSDP and activation checkpointing around whatever they wrap."""

WRAPPERS_IN_FRONT = ("module.", "_forward_module.", "base_model.model.", "pretrained_model.")
"""Left around a whole model: by DDP and DeepSpeed, Lightning, PEFT, TRL's value heads."""

ADAPTER_TENSOR = re.compile(r"(^|\.)(lora_[A-Za-z_]+|ia3_l|oft_[A-Za-z]+|hada_[wt][12]\w*)(\.|$)")
"""Tensors of an adapter that was saved along with its model and not merged into it."""

Keys = Callable[[Iterable[str]], Mapping[str, str]]
"""Gives names as they are in a loaded model, by which two layouts are compared."""


@dataclass
class NamedIndex(ShardedTensorIndex):
    """An index of tensors by the names of a plan."""

    stored: dict[str, str] = field(default_factory=dict)
    """The name in the file, by the name in the plan."""
    checkpoint: Checkpoint | None = None
    """What is known of the files already."""


class NamedLoader(LazyTensorLoader):
    """mergekit's loader of a checkpoint, asked by the names of a plan.

    Args:
        model: as the configuration names it.
        checkpoint: to read.
        lazy_unpickle: mergekit's option.
        stored: the name in the file of every tensor, by its name in the plan.
    """

    def __init__(
        self, model: str, checkpoint: Checkpoint, lazy_unpickle: bool, stored: Mapping[str, str]
    ):
        inner = checkpoint.index
        index = NamedIndex(
            inner.base_path,
            inner.is_safetensors,
            {name: inner.tensor_paths[old] for name, old in stored.items()},
            inner.shards,
            dict(stored),
            checkpoint,
        )
        super().__init__(index, lazy_unpickle)
        self._model = model
        self.stored = index.stored
        self.checkpoint = checkpoint
        self._inner = IndexedLoader(inner, lazy_unpickle)

    def get_tensor(
        self,
        key: str,
        device: str = "cpu",
        aliases: list[str] | None = None,
        raise_on_missing: bool = True,
    ) -> torch.Tensor | None:
        """See mergekit's loader.

        Raises:
            InputError: the tensor cannot be read.
        """
        names = [name for name in (key, *(aliases or ())) if name in self.stored]
        if names:
            stored = self.stored[names[0]]
            try:
                return self._inner.get_tensor(stored, device)
            except Exception:  # named only now: loading a small tensor takes less time
                file = shard_path(self.index, self.index.tensor_paths[names[0]])
                remedy = "Repair or re-download this checkpoint."
                with reading(self._model, f"tensor {stored} in {file}", remedy):
                    raise
        if raise_on_missing:
            raise KeyError(key)
        return None

    def flush(self) -> None:
        """Close the file that is open."""
        self._inner.flush()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Naming:
    """How a checkpoint's names become those of a plan.

    Attributes:
        stored: the name in the file of every tensor, by its name in the plan.
        wrappers: that were taken off.
        converted: an example of a name that transformers has another one for, and that one.
    """

    stored: Mapping[str, str]
    wrappers: tuple[str, ...] = ()
    converted: tuple[str, str] | None = None


def headers_of(index: ShardedTensorIndex, model: str) -> dict[str, TensorHeader]:
    """All tensors that an index knows, by their names in the plan.

    Raises:
        InputError: a file is missing, empty or broken.
    """
    if isinstance(index, NamedIndex) and index.checkpoint is not None:
        headers = index.checkpoint.headers
        return {name: headers[old] for name, old in index.stored.items()}
    found: dict[str, TensorHeader] = {}
    for shard in index.shards:
        found |= read_shard(shard_path(index, shard.filename), index.is_safetensors, model)
    return found


def promises_of(index: ShardedTensorIndex) -> Mapping[str, InputError]:
    """What is wrong with tensors that an index file lists and no file holds, by name."""
    known = index.checkpoint if isinstance(index, NamedIndex) else None
    return {} if known is None else known.promised


def unwrapped(name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A name, and what is left of it when more and more wrappers are taken off, with those.

    >>> [name for name, _ in unwrapped("module._orig_mod.lm_head.weight")]
    ['module._orig_mod.lm_head.weight', 'module.lm_head.weight', 'lm_head.weight']
    """
    yield name, ()
    taken: tuple[str, ...] = ()
    for wrapper in WRAPPERS_ANYWHERE:
        inside = re.sub(rf"(^|\.){re.escape(wrapper)}", r"\1", name)
        if inside != name:
            name, taken = inside, (*taken, wrapper)
            yield name, taken
    while any(name.startswith(wrapper) for wrapper in WRAPPERS_IN_FRONT):
        wrapper = next(w for w in WRAPPERS_IN_FRONT if name.startswith(w))
        name, taken = name.removeprefix(wrapper), (*taken, wrapper)
        yield name, taken


def name_by_plan(names: Iterable[str], planned: Iterable[str], keys: Keys | None) -> Naming:
    """Match a checkpoint's names with those of a plan.

    Args:
        names: in the files.
        planned: names that the plan asks for.
        keys: to compare different layouts by; None where transformers does not tell.
    """
    wanted = set(planned)
    stored: dict[str, str] = {}
    used: set[str] = set()
    left = []
    # A name that fits as it is goes before one that has to be changed.
    for name in sorted(set(names)):
        if name in wanted:
            stored[name] = name
        else:
            left.append(name)
    by_key = _by_key(wanted - stored.keys(), keys)
    variants = {name: list(unwrapped(name)) for name in left}
    found_keys = _keys_of({v for own in variants.values() for v, _ in own}, keys)
    converted: tuple[str, str] | None = None
    for name in left:
        target, wrappers = _target(variants[name], wanted, by_key, found_keys)
        if target is None or target in stored:
            stored.setdefault(name, name)
            continue
        stored[target] = name
        used |= set(wrappers)
        if not wrappers and converted is None:
            converted = (name, target)
    return Naming(stored, tuple(sorted(used)), converted)


def without_wrappers(names: Iterable[str], is_known: Callable[[str], bool] | None) -> Naming:
    """A base's names without what trainers left in them.

    Args:
        names: in the files.
        is_known: whether a name is one that the model loads; None where nobody knows, and then
            wrappers are taken off only if all names have them.
    """
    names = sorted(set(names))
    variants = {name: list(unwrapped(name)) for name in names}
    everywhere = all(len(own) > 1 for own in variants.values())
    stored: dict[str, str] = {}
    used: set[str] = set()
    for name, own in variants.items():
        known = [variant for variant in own if is_known is not None and is_known(variant[0])]
        target, wrappers = known[0] if known else own[-1] if everywhere else own[0]
        if target in stored:
            target, wrappers = name, ()
        stored[target] = name
        used |= set(wrappers)
    return Naming(stored, tuple(sorted(used)))


def _target(
    variants: list[tuple[str, tuple[str, ...]]],
    wanted: set[str],
    by_key: Mapping[str, str],
    keys: Mapping[str, str],
) -> tuple[str | None, tuple[str, ...]]:
    for variant, wrappers in variants:
        if variant in wanted:
            return variant, wrappers
    for variant, wrappers in variants:
        target = by_key.get(keys.get(variant, variant))
        if target is not None:
            return target, wrappers
    return None, ()


def _by_key(names: Iterable[str], keys: Keys | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, key in sorted(_keys_of(names, keys).items()):
        found.setdefault(key, name)
    return found


def _keys_of(names: Iterable[str], keys: Keys | None) -> Mapping[str, str]:
    return {} if keys is None else keys(names)
