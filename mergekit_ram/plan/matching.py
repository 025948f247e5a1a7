"""What the names in checkpoints have to do with each other, and what is said of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from mergekit.common import ModelReference

from mergekit_ram.errors import InputError
from mergekit_ram.merges.checkpoints import Checkpoint
from mergekit_ram.merges.naming import ADAPTER_TENSOR, Naming
from mergekit_ram.merges.notes import Note, some

LOG = logging.getLogger("mergekit_ram")

FEWEST = 0.5
"""Share of names that a prefix has to explain before it is suggested as the reason."""


def notes_on_names(namings: Mapping[ModelReference, Naming]) -> list[Note]:
    """One note per model whose names are not read as they are.

    Names that transformers itself knows are nothing to be warned of; they are logged.
    """
    notes = []
    for model, naming in namings.items():
        if naming.wrappers:
            prefixes = ", ".join(f"`{wrapper}`" for wrapper in naming.wrappers)
            notes.append(
                Note(
                    "wrapped-names",
                    f"model {model}: a trainer has left {prefixes} in the names of its tensors; "
                    "they are read without it",
                )
            )
        if naming.converted:
            LOG.info(
                "model %s: its tensors are read by the names that transformers loads them by "
                "(such as %s as %s)",
                model,
                *naming.converted,
            )
    return notes


def check_names(
    model: ModelReference, checkpoint: Checkpoint, naming: Naming, planned: set[str]
) -> None:
    """Check that a model has anything to do with the plan.

    Raises:
        InputError: no tensor of it has a planned name, or it carries an adapter's tensors.
    """
    floating = {
        name
        for name, stored in naming.stored.items()
        if checkpoint.headers[stored].dtype.is_floating_point
    }
    adapters = sorted(name for name in floating - planned if ADAPTER_TENSOR.search(name))
    if adapters:
        raise InputError(
            f"model {model}: its file holds an adapter's tensors that are not merged into the "
            f"weights ({some(adapters)}), so that they would be left out. Merge them before "
            "(PEFT's merge_and_unload) and save the result."
        )
    if floating & planned or not floating:
        return
    raise InputError(
        f"model {model}: none of its {len(floating)} tensors has a name of the base's: it has "
        f"{some(sorted(floating))}, the base {some(sorted(planned))}."
        f"{_suggestion(floating, planned)}"
    )


def _suggestion(names: set[str], planned: set[str]) -> str:
    prefix = _odd_prefix(names, planned)
    if prefix is not None:
        return (
            f" Without the prefix {prefix} they would fit: save the model without the module "
            "around it, or rename its tensors."
        )
    lost = _odd_prefix(planned, names)
    if lost is not None:
        return f" With the prefix {lost} they would fit: rename its tensors."
    return (
        " All models must be of one architecture and size, with the base that the agents were "
        "trained from as `base_model:`."
    )


def _odd_prefix(names: set[str], others: set[str]) -> str | None:
    """A prefix without which most names are among the others."""
    counts: dict[str, int] = {}
    for name in names:
        for place in (i + 1 for i, letter in enumerate(name) if letter == "."):
            if name[place:] in others:
                counts[name[:place]] = counts.get(name[:place], 0) + 1
                break
    best = max(counts, key=lambda prefix: counts[prefix], default=None)
    if best is None or counts[best] < FEWEST * min(len(names), len(others)):
        return None
    return best
