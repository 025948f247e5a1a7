"""Whether the output is the whole base, and whether every model is in it.

mergekit plans the weights that an architecture lists. What a checkpoint holds besides, and what
it has under other names, is left out without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.errors import InputError
from mergekit_ram.merges.groups import agents_of
from mergekit_ram.merges.notes import Note, some
from mergekit_ram.plan.uses import Use, Uses


def check_coverage(
    merges: Sequence[ExecuteMergeMethodTask], uses: Uses, spoken_for: Iterable[str]
) -> list[Note]:
    """Compare what the models hold with what the plan loads.

    Args:
        merges: of the plan.
        uses: what they load of every model.
        spoken_for: names that the architecture knows and the configuration leaves out on
            purpose, such as layers outside of its slices.

    Returns:
        What only agents have, and what agents lack.

    Raises:
        InputError: tensors of the base that no weight of the output is made of, or an agent
            that takes part in no weight.
    """
    known = set(spoken_for)
    bases = dict.fromkeys(str(merge.base_model) for merge in merges)
    agents = dict.fromkeys(str(model) for merge in merges for model in agents_of(merge))
    for base in bases:
        if base in uses.by_model:
            _check_base(base, uses.by_model[base], known)
    parts = {name: uses.by_model[name] for name in agents if name in uses.by_model}
    for name, use in parts.items():
        if not any(use.headers[used].dtype.is_floating_point for used in use.used):
            raise InputError(
                f"model {name}: no tensor of it takes part in the merge; it holds "
                f"{some(sorted(use.headers)) or 'nothing'}. Leave it out, or give its tensors the "
                "names of the base's."
            )
    only_agents = {name: use for name, use in parts.items() if name not in bases}
    return [*_on_extra_tensors(only_agents, known), *_on_lacking_tensors(only_agents)]


def on_raw_tensors(merges: Sequence[ExecuteMergeMethodTask], uses: Uses) -> list[Note]:
    """The same of raw checkpoints, of which mergekit merges what it was told to.

    It lists the agents' tensors, so that those of the base alone are never among them.

    Raises:
        InputError: an agent that takes part in no weight.
    """
    notes, left_out = [], set()
    for base in dict.fromkeys(str(merge.base_model) for merge in merges):
        use = uses.by_model.get(base)
        lost = use.unused() if use is not None else []
        if use is not None and lost:
            left_out |= set(lost)
            notes.append(
                Note(
                    "base-only",
                    f"model {base}: {len(lost)} tensors ({use.numel(lost):,} parameters) are not "
                    f"in the output, since mergekit does not list them for this merge: "
                    f"{some(lost)}",
                )
            )
    return [*notes, *check_coverage(merges, uses, left_out)]


def _check_base(base: str, use: Use, known: set[str]) -> None:
    lost = [name for name in use.unused() if name not in known]
    if lost:
        raise InputError(
            f"model {base}: {len(lost)} tensors ({use.numel(lost):,} parameters) would be missing "
            f"from the output, since no module or slice of the configuration holds them: "
            f"{some(lost)}. List the models under `models:`, where every tensor of the base is "
            "merged."
        )


def _on_extra_tensors(parts: Mapping[str, Use], known: set[str]) -> Iterator[Note]:
    by_names: dict[tuple[str, ...], list[str]] = {}
    for model, use in parts.items():
        extra = tuple(name for name in use.unused() if name not in known)
        if extra:
            by_names.setdefault(extra, []).append(model)
    if not by_names:
        return
    texts = [
        f"{', '.join(models)}: {some(names)} ({parts[models[0]].numel(list(names)):,} parameters)"
        for names, models in by_names.items()
    ]
    yield Note(
        "agents-only",
        "tensors that the base does not have take no part and are not in the output: "
        + "; ".join(texts),
    )


def _on_lacking_tensors(parts: Mapping[str, Use]) -> Iterator[Note]:
    for model, use in parts.items():
        if use.lacked:
            lacked = list(dict.fromkeys(use.lacked))
            yield Note(
                "agent-lacks-tensors",
                f"model {model}: it lacks {len(lacked)} tensors of the base, where it counts as "
                f"unchanged: {some(lacked)}",
            )
