"""By which architecture a merge is planned: mergekit's where it names every tensor of the base."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mergekit.architecture import ModelArchitecture, WeightInfo
from mergekit.common import ModelReference
from mergekit.config import MergeConfiguration

from mergekit_ram.errors import InputError
from mergekit_ram.merges.checkpoints import Checkpoint
from mergekit_ram.merges.naming import Keys, Naming, name_by_plan, unwrapped, without_wrappers
from mergekit_ram.plan.architecture import architecture_of
from mergekit_ram.plan.layout import Layout, layout_of
from mergekit_ram.plan.matching import check_names

LOG = logging.getLogger("mergekit_ram")

ARCHITECTURE_REMEDY = (
    "All models must be of one architecture and size, with the base that the agents were trained "
    "from as `base_model:`."
)

Namings = Mapping[ModelReference, Naming]


@dataclass(frozen=True)
class Plan:
    """An architecture, and every model's names in it."""

    architecture: ModelArchitecture
    namings: Namings

    @classmethod
    def as_it_is(
        cls, architecture: ModelArchitecture, checkpoints: Mapping[ModelReference, Checkpoint]
    ) -> Plan:
        """With the names that the files have."""
        return cls(
            architecture,
            {model: Naming({n: n for n in found.headers}) for model, found in checkpoints.items()},
        )


def choose(
    config: MergeConfiguration,
    base: ModelReference,
    checkpoints: Mapping[ModelReference, Checkpoint],
    base_config: Any,
    mergekits: ModelArchitecture | None,
    find: Callable[[], ModelArchitecture],
    *,
    trust_remote_code: bool,
) -> Plan:
    """The architecture of a merge, and the names by which models are read.

    Args:
        config: of the merge.
        base: the model whose tensors make the output.
        checkpoints: of all models.
        base_config: the base's configuration.
        mergekits: mergekit's architecture, where it knows one.
        find: mergekit's search for one, where it does not.
        trust_remote_code: mergekit's option.

    Raises:
        InputError: tensors that transformers needs are missing from the base, or a model has
            nothing to do with it.
    """
    chooser = _Chooser(base, checkpoints, base_config, trust_remote_code)
    if mergekits is not None:
        plan = chooser.by_mergekit(mergekits)
        if plan is not None:
            return plan
    own = chooser.by_base(fallback=mergekits is not None)
    if own is None:
        assert mergekits is not None
        return chooser.as_far_as_known(mergekits)
    if config.modules and config.modules.keys() - own.architecture.modules.keys():
        # These modules are mergekit's; what they leave out is found when all is planned.
        return chooser.as_far_as_known(mergekits or find())
    return own


class _Chooser:
    def __init__(
        self,
        base: ModelReference,
        checkpoints: Mapping[ModelReference, Checkpoint],
        config: Any,
        trust_remote_code: bool,
    ):
        self.base = base
        self.checkpoints = checkpoints
        self.config = config
        self._trust = trust_remote_code

    @functools.cached_property
    def layout(self) -> Layout | None:
        """Made when it is first needed: it builds a model without data."""
        return layout_of(self.config, trust_remote_code=self._trust)

    @functools.cached_property
    def _loaded(self) -> dict[str, frozenset[str]]:
        """What every stored name is loaded as, with and without wrappers; empty without layout.

        All of a model's at once: there may be tens of thousands.
        """
        found: dict[str, frozenset[str]] = {}
        for checkpoint in self.checkpoints.values() if self.layout else ():
            names = [*checkpoint.headers, *checkpoint.promised]
            variants = {variant for name in names for variant, _ in unwrapped(name)}
            found |= self.layout.loaded(variants) if self.layout else {}
        return found

    @functools.cached_property
    def _keys(self) -> dict[str, str]:
        """The name of every stored tensor in a loaded model; empty without layout."""
        found: dict[str, str] = {}
        for checkpoint in self.checkpoints.values() if self.layout else ():
            variants = {variant for name in checkpoint.headers for variant, _ in unwrapped(name)}
            found |= self.layout.names(variants) if self.layout else {}
        return found

    def by_mergekit(self, architecture: ModelArchitecture) -> Plan | None:
        """mergekit's architecture if it names all that the base holds, else None."""
        weights = _weights(architecture, self.config)
        if weights is None:
            return None
        planned = _names(weights)
        naming = self._named(self.base, planned)
        needed = [w for w in weights if not w.optional]
        if any(naming.stored.keys().isdisjoint(_names([weight])) for weight in needed):
            return None
        if any(self._is_weight(self.base, naming, name) for name in naming.stored.keys() - planned):
            return None
        if any(self._is_packed(model, needed, planned) for model in self.checkpoints):
            return None
        return self._with_agents(architecture, planned, naming)

    def _is_packed(
        self, model: ModelReference, needed: Iterable[WeightInfo], planned: set[str]
    ) -> bool:
        """Whether a model lacks weights, and has others that transformers loads in their place."""
        stored = self._named(model, planned).stored.keys()
        if not any(stored.isdisjoint(_names([weight])) for weight in needed):
            return False
        return self.layout is not None and bool((stored - planned) & self.layout.keys)

    def as_far_as_known(self, architecture: ModelArchitecture) -> Plan:
        """mergekit's architecture, whatever it leaves out."""
        planned = _names(_weights(architecture, self.config) or ())
        naming = self._named(self.base, planned)
        return self._with_agents(architecture, planned | naming.stored.keys(), naming)

    def by_base(self, *, fallback: bool) -> Plan | None:
        """The architecture of what the base stores.

        Args:
            fallback: there is one of mergekit's, so that None is an answer.
        """
        checkpoint = self.checkpoints[self.base]
        names = checkpoint.headers.keys()
        naming = without_wrappers(names, self._is_known if self.layout else None)
        kept = {n for n in naming.stored if self._is_kept(n)}
        self._check_promises(kept)
        missing = self.layout.missing(kept) if self.layout else []
        if missing and fallback:
            return None
        if missing:
            raise InputError(
                f"model {self.base}: tensor {missing[0]} is missing, and the architecture "
                f"requires it. {ARCHITECTURE_REMEDY}"
            )
        naming = Naming({n: naming.stored[n] for n in kept}, naming.wrappers)
        others = {m: self._named(m, kept) for m in self.checkpoints if m != self.base}
        planned = self._repacked(kept | self._heads(others), others)
        agents = {model: self._named(model, planned) for model in others}
        weights = [self._weight(name, [naming, *agents.values()], planned) for name in planned]
        (name,) = self.config.architectures
        architecture = architecture_of(weights, self.config, name)
        return self._with_agents(architecture, planned, naming)

    def _is_known(self, name: str) -> bool:
        return bool(self._loaded[name])

    def _is_kept(self, name: str) -> bool:
        if self.layout is None:
            return True
        return bool(self._loaded.get(name)) or not self.layout.is_ignored(name)

    def _check_promises(self, kept: set[str]) -> None:
        """A tensor that the base's index promises and no file holds is missed if it is needed."""
        promised = self.checkpoints[self.base].promised
        missing = set(self.layout.missing(kept)) if self.layout and promised else set()
        for name, error in promised.items():
            if self.layout is None or self._loaded[name] & missing:
                raise error

    def _named(self, model: ModelReference, planned: set[str]) -> Naming:
        names = self.checkpoints[model].headers.keys()
        if planned <= names or names <= planned:
            return Naming({name: name for name in names})
        keys: Keys | None = self.layout.names if self.layout else None
        return name_by_plan(names, planned, keys)

    def _is_weight(self, model: ModelReference, naming: Naming, name: str) -> bool:
        header = self.checkpoints[model].headers[naming.stored[name]]
        return header.dtype.is_floating_point and self._is_kept(name)

    def _heads(self, others: Namings) -> set[str]:
        """Weights that the base takes from others and that an agent stores."""
        if self.layout is None:
            return set()
        found = set()
        for naming in others.values():
            found |= {n for n in naming.stored if self._keys.get(n) in self.layout.tied}
        return found

    def _repacked(self, planned: set[str], others: Namings) -> set[str]:
        """Experts that an agent stores packed and the base does not are merged packed.

        mergekit packs them; it cannot take them apart.
        """
        if self.layout is None:
            return planned
        parts = self.layout.loaded(planned)
        for naming in others.values():
            for packed in (naming.stored.keys() - planned) & self.layout.keys:
                pieces = {n for n, targets in parts.items() if packed in targets}
                if pieces:
                    planned = (planned - pieces) | {packed}
        return planned

    def _weight(self, name: str, namings: list[Naming], planned: set[str]) -> WeightInfo:
        tied: tuple[str, ...] | None = None
        axis = None
        if self.layout is not None:
            key = self._keys.get(name, name)
            axis = self.layout.vocabulary.get(key)
            source = self.layout.tied.get(key)
            if source is not None:
                tied = tuple(n for n in sorted(planned) if self._keys.get(n, n) == source) or None
        return WeightInfo(
            name=name,
            optional=any(name not in naming.stored for naming in namings),
            vocabulary_axis=axis,
            tied_names=tied,
        )

    def _with_agents(
        self, architecture: ModelArchitecture, planned: set[str], naming: Naming
    ) -> Plan:
        namings = {}
        for model, checkpoint in self.checkpoints.items():
            found = naming if model == self.base else self._named(model, planned)
            # What transformers passes over on purpose is no part of the model.
            kept = {n: old for n, old in found.stored.items() if n in planned or self._is_kept(n)}
            namings[model] = Naming(kept, found.wrappers, found.converted)
            check_names(model, checkpoint, namings[model], planned)
        return Plan(architecture, namings)


def _weights(architecture: ModelArchitecture, config: Any) -> list[WeightInfo] | None:
    """All weights of an architecture; None where the configuration does not fit it."""
    try:
        return list(architecture.all_weights(config))
    except Exception:  # mergekit looks up settings that another version had
        LOG.info("mergekit's architecture does not fit the configuration", exc_info=True)
        return None


def _names(weights: Iterable[WeightInfo]) -> set[str]:
    return {
        name
        for weight in weights
        for name in (weight.name, *(weight.aliases or ()), *(weight.tied_names or ()))
    }
