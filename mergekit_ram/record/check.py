"""Read a record, and check it against the counts of its own tensors."""

from __future__ import annotations

import gc
import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import combinations, islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from mergekit_ram.errors import InputError
from mergekit_ram.overlap import OverlapStatistics
from mergekit_ram.record.contents import WRITTEN, FileRecord, file_record
from mergekit_ram.record.layers import different, layer_records, setting
from mergekit_ram.record.schema import (
    RECORD_NAME,
    SCHEMA_VERSION,
    AgentRecord,
    Finding,
    OverlapRecord,
    PairRecord,
    Setting,
    TensorAgent,
)

MAX_BYTES = 256 * 1024 * 1024
"""A record of 20,000 tensors and 30 agents takes less."""

KINDS = {"adapter_config.json": "an adapter", "config.json": "a model"}
"""What a folder is, by a file in it."""

CLOSE = 1e-9
"""Difference between two shares that were computed from the same counts."""


@contextmanager
def _uncollected() -> Iterator[None]:
    """Put off the garbage collector, which takes as long as reading a large record does."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_uncollected()
def read_record(path: str | Path) -> OverlapRecord:
    """Read a record again.

    Memory and time grow with the size of the file, whatever it contains.

    Args:
        path: of its file, or of the folder of a merge.

    Raises:
        InputError: the file is missing, is no record of this schema version, or its numbers
            contradict each other.
    """
    path = Path(path)
    if path.is_dir():
        folder, path = path, path / RECORD_NAME
        if not path.exists():
            kind = next((kind for file, kind in KINDS.items() if (folder / file).exists()), "")
            raise InputError(
                f"{folder} is {kind or 'a folder'} without {RECORD_NAME}, which a merge by ram, "
                "ram_plus or ram_directions leaves. To compare models, give the YAML of a merge "
                "with their base as `base_model:`."
            )
    try:
        fields = _fields(path)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as a record of overlaps: {error}. Give the {RECORD_NAME} of a "
            "merge, or the file that `mergekit-ram inspect --json` wrote."
        ) from None
    version = fields.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool | float):
        raise InputError(
            f"{path} is no record of schema version {SCHEMA_VERSION}, the only one that is read "
            f"here: its schema_version is {version!r:.40}. Inspect or merge again to write a new "
            "one."
        )
    try:
        record = OverlapRecord.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"{path} is damaged: {place}: {first['msg']}. Write it again.") from None
    for where, given, expected in _contradictions(record, fields):
        raise InputError(
            f"{path} contradicts itself: {'.'.join(where)} is {given!s:.80}, but its counts give "
            f"{expected!s:.80}. Write it again."
        )
    return record


def compared_with_weights(record: OverlapRecord, folder: Path) -> OverlapRecord:
    """The record of a merge, with a finding if the weights in its folder are others.

    Neither torch nor mergekit is imported where weights are safetensors.

    Args:
        record: that was read from the folder.
        folder: of a merged model; its weights may have been moved away.
    """
    found = {path.name: path for kind in WRITTEN for path in folder.glob(kind)}
    written = {file.name: file for file in record.written or ()}
    differences = {
        name: _difference(found.get(name), written.get(name))
        for name in sorted({**found, **written})
    }
    problems = ", ".join(f"{name} {said}" for name, said in differences.items() if said)
    if not (found and written and problems):
        return record
    text = f"This record is not that of the weights beside it: {problems}."
    findings = (Finding(code="other-weights", text=text), *record.findings)
    return record.model_copy(update={"findings": findings})


def _difference(path: Path | None, written: FileRecord | None) -> str:
    """How a file differs from the one that was written, in words; empty where it does not."""
    if path is None or written is None:
        return "is not of this merge" if path else "is missing"
    with suppress(InputError):
        if file_record(path, str(path.parent)) == written:
            return ""
    return "has changed"


def is_record(source: Path) -> bool:
    """Whether a path is a record to show again, and no recipe: YAML may well be JSON too."""
    if source.is_dir():
        return True
    try:
        fields = _fields(source)
    except (OSError, ValueError):
        return source.suffix == ".json"
    is_recipe = "merge_method" in fields and "agents" not in fields
    return not is_recipe and (source.suffix == ".json" or "schema_version" in fields)


def _fields(path: Path) -> dict[str, Any]:
    """Parse a file of JSON.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, larger than any record, or no JSON object of finite
            numbers and moderate depth.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is no file")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"it has {size:,} bytes, more than any record")
    found = from_json(path.read_bytes(), allow_inf_nan=False)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


Difference = tuple[tuple[str, ...], Any, Any]
"""Where two values differ, and both values there."""


def _contradictions(record: OverlapRecord, fields: dict[str, Any]) -> Iterator[Difference]:
    """Find the fields that are not as the counts of the tensors give them."""
    own: dict[str, list[TensorAgent]] = defaultdict(list)
    for tensor in record.tensors:
        for agent in tensor.agents:
            own[agent.model].append(agent)
    names = [agent.model for agent in record.agents]
    yield from differences({"agents": sorted(names)}, {"agents": sorted(own)})
    if record.pairwise is not None:
        pairs = [[pair.first, pair.second] for pair in record.pairwise]
        # No more of them than there are: a long list of agents has far more pairs.
        every = [*map(list, islice(combinations(names, 2), len(pairs) + 1))]
        yield from differences({"pairwise": pairs}, {"pairwise": every})
    expected = _from_counts(record, own)
    given = {name: value for name, value in fields.items() if name != "tensors"}
    yield from differences(given, expected.model_dump(mode="json", exclude={"tensors"}))
    of_model = [[name, expected.parameters] for name in names]
    found = [
        [[agent.model, agent.parameters] for agent in at.agents] for at in record.thresholds or ()
    ]
    yield from differences({"thresholds": found}, {"thresholds": [of_model] * len(found)})


def _from_counts(record: OverlapRecord, own: dict[str, list[TensorAgent]]) -> OverlapRecord:
    """The record with every field that follows from the tensors computed again.

    Args:
        record: whose agents are those of its tensors.
        own: every agent's part in each tensor.
    """
    statistics = record.statistics()
    parameters = statistics.parameters
    agents = [agent.model_copy(update={"parameters": parameters}) for agent in record.agents]
    changes: dict[str, Any] = {
        "parameters": parameters,
        "epsilon": record.settings.epsilon,
        "layers": layer_records(record.tensors),
    }
    if record.sample is None:
        agents = [_agent(agent, statistics, own[agent.model]) for agent in agents]
        active = {agent.model: agent.active for agent in agents}
        changes["pairwise"] = record.pairwise and tuple(
            _pair(pair, active[pair.first], active[pair.second]) for pair in record.pairwise
        )
    elif record.sample.parameters > parameters:
        changes["sample"] = record.sample.model_copy(update={"parameters": parameters})
    return record.model_copy(update={**changes, "agents": tuple(agents)})


def _agent(
    agent: AgentRecord, statistics: OverlapStatistics, own: list[TensorAgent]
) -> AgentRecord:
    """The record of an agent as its part in every tensor gives it."""
    counted = statistics.agent(agent.model).overlap_degree
    unused = len(agent.overlap_degree) - len(counted)
    return agent.model_copy(
        update={
            "overlap_degree": (*counted, *(0,) * unused),
            "weight": _setting(agent.weight, {part.weight for part in own}),
            "rescale": _setting(agent.rescale, {part.rescale for part in own if part.weight}),
        }
    )


def _setting(given: Setting, used: set[float]) -> Setting:
    """A setting that holds all values used; a tensor that is copied has one and no counts."""
    return given if used <= {*different(given)} else setting(used)


def _pair(pair: PairRecord, first: int, second: int) -> PairRecord:
    """The same pair of agents with so many active parameters."""
    both = min(pair.both, first, second)
    either = first + second - both
    return pair.model_copy(update={"both": both, "jaccard": both / either if either else None})


def differences(given: Any, expected: Any, place: tuple[str, ...] = ()) -> Iterator[Difference]:
    """Find where two JSON values differ, item by item and without intervals."""
    if isinstance(given, dict) and isinstance(expected, dict):
        # Missing ones first.
        names = sorted({**given, **expected}, key=lambda name: name in given and name in expected)
        for name in names:
            if name != "interval":
                yield from differences(given.get(name), expected.get(name), (*place, name))
    elif isinstance(given, list) and isinstance(expected, list):
        if len(given) != len(expected):
            yield (*place, "length"), len(given), len(expected)
        for number, (one, other) in enumerate(zip(given, expected, strict=False)):
            yield from differences(one, other, (*place, str(number)))
    elif isinstance(given, float | int) and isinstance(expected, float):
        if not math.isclose(given, expected, rel_tol=CLOSE, abs_tol=CLOSE):
            yield place, given, expected
    elif given != expected:
        yield place, given, expected
