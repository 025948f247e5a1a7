"""Finds the tensors of a plan in checkpoints whose names differ from the plan's.

Trainers leave prefixes in names, and transformers has renamed modules since a checkpoint was
written. mergekit still does the loading; it sees the names of the plan.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from mergekit_ram.errors import InputError
from mergekit_ram.text import some

WRAPPERS_ANYWHERE = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""Left by torch.compile, FSDP and activation checkpointing around modules of any depth."""

WRAPPERS_IN_FRONT = ("module.", "_forward_module.", "base_model.model.", "pretrained_model.")
"""Left around a whole model: by DDP and DeepSpeed, Lightning, PEFT, TRL's value heads."""

ADAPTER_TENSOR = re.compile(r"(^|\.)(lora_[A-Za-z_]+|ia3_l|oft_[A-Za-z]+|hada_[wt][12]\w*)(\.|$)")
"""Tensors of an adapter that was saved along with its model and not merged into it."""

FEWEST = 0.5
"""Share of names that a prefix has to explain before it is suggested as the reason."""

ARCHITECTURE_REMEDY = (
    "All models must be of one architecture and size, with the base that the agents were trained "
    "from as `base_model:`."
)


@dataclass(frozen=True)
class Naming:
    """The names in a checkpoint of a plan's tensors.

    Attributes:
        stored: the name in the checkpoint of every tensor, by its name in the plan.
        wrappers: prefixes that were taken off.
    """

    stored: Mapping[str, str]
    wrappers: tuple[str, ...]


def unwrapped(name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A name, and what is left of it when more and more wrappers are taken off, with those.

    >>> [name for name, _ in unwrapped("module._orig_mod.lm_head.weight")]
    ['module._orig_mod.lm_head.weight', 'module.lm_head.weight', 'lm_head.weight']
    """
    yield name, ()
    taken: tuple[str, ...] = ()
    for wrapper in WRAPPERS_ANYWHERE:
        if f".{wrapper}" in f".{name}":
            name, taken = f".{name}".replace(f".{wrapper}", ".")[1:], (*taken, wrapper)
            yield name, taken
    while any(name.startswith(wrapper) for wrapper in WRAPPERS_IN_FRONT):
        wrapper = next(w for w in WRAPPERS_IN_FRONT if name.startswith(w))
        name, taken = name.removeprefix(wrapper), (*taken, wrapper)
        yield name, taken


def match(names: Iterable[str], planned: Collection[str], keys: Mapping[str, str]) -> Naming:
    """Match a checkpoint's names with those of a plan.

    A name that fits as it is goes before one without its wrappers, and that before one that
    transformers loads as the same weight. A name that fits nothing stays as it is.

    Args:
        names: in the checkpoint.
        planned: by the plan.
        keys: the names of both, without wrappers, in a loaded model; as far as they are known.
    """
    names, wanted = set(names), set(planned)
    by_key = {keys.get(name, name): name for name in sorted(wanted - names, reverse=True)}
    stored = {name: name for name in sorted(names & wanted)}
    used: set[str] = set()
    for name in sorted(names - wanted):
        target, wrappers = _target(name, wanted, by_key, keys)
        if target in stored:
            target, wrappers = name, ()
        stored[target] = name
        used |= set(wrappers)
    return Naming(stored, tuple(sorted(used)))


def _target(
    name: str, wanted: set[str], by_key: Mapping[str, str], keys: Mapping[str, str]
) -> tuple[str, tuple[str, ...]]:
    variants = list(unwrapped(name))
    for variant, wrappers in variants:
        if variant in wanted:
            return variant, wrappers
    for variant, wrappers in variants:
        target = by_key.get(keys.get(variant, variant))
        if target is not None:
            return target, wrappers
    return name, ()


def check_names(model: object, floating: Collection[str], planned: Collection[str]) -> None:
    """Check that a model has anything to do with a plan.

    Args:
        model: as the configuration names it.
        floating: its floating tensors, by their names in the plan.
        planned: names of the plan.

    Raises:
        InputError: no tensor of it has a planned name, or it carries an adapter's tensors.
    """
    names, wanted = set(floating), set(planned)
    adapters = sorted(name for name in names - wanted if ADAPTER_TENSOR.search(name))
    if adapters:
        raise InputError(
            f"model {model}: its file holds an adapter's tensors that are not merged into the "
            f"weights ({some(adapters)}), so that they would be left out. Merge them before "
            "(PEFT's merge_and_unload) and save the result."
        )
    if names and not names & wanted:
        raise InputError(
            f"model {model}: none of its {len(names)} tensors has a name of the base's: it has "
            f"{some(sorted(names))}, the base {some(sorted(wanted))}. {_suggestion(names, wanted)}"
        )


def _suggestion(names: set[str], planned: set[str]) -> str:
    prefix = _odd_prefix(names, planned)
    if prefix is not None:
        return (
            f"Without the prefix {prefix} they would fit: save the model without the module "
            "around it, or rename its tensors."
        )
    lost = _odd_prefix(planned, names)
    if lost is not None:
        return f"With the prefix {lost} they would fit: rename its tensors."
    return ARCHITECTURE_REMEDY


def _odd_prefix(names: set[str], others: set[str]) -> str | None:
    """A prefix without which most names are among the others."""
    counts: dict[str, int] = {}
    for name in sorted(names):
        for place in (i + 1 for i, letter in enumerate(name) if letter == "."):
            if name[place:] in others:
                counts[name[:place]] = counts.get(name[:place], 0) + 1
                break
    best = max(counts, key=lambda prefix: counts[prefix], default=None)
    if best is None or counts[best] < FEWEST * min(len(names), len(others)):
        return None
    return best
