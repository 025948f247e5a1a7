"""Read a record, and check it against the counts of its own tensors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from mergekit_ram.errors import InputError
from mergekit_ram.overlap import AgentCounts, AgentOverlap
from mergekit_ram.record.build import counted_fields, different, layer_records, setting
from mergekit_ram.record.schema import (
    RECORD_NAME,
    SCHEMA_VERSION,
    AgentRecord,
    OverlapRecord,
    PairRecord,
    TensorRecord,
    ThresholdAgent,
)

MAX_BYTES = 256 * 1024 * 1024
"""A record of 20,000 tensors and 30 agents takes less."""

CLOSE = 1e-9
"""Difference between two shares that were computed from the same counts."""

Agent = TypeVar("Agent", AgentRecord, ThresholdAgent)


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
        path = path / RECORD_NAME
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
    for problem in _contradictions(record):
        raise InputError(f"{path} contradicts itself: {problem}. Write it again.")
    return record


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


def _contradictions(record: OverlapRecord) -> Iterator[str]:
    """Find what the counts of the tensors do not allow; each check relies on those before."""
    names = [agent.model for agent in record.agents]
    yield from _repeated("agents", names)
    yield from _repeated("tensors", [tensor.name for tensor in record.tensors])
    counted = [agent.model for agent in record.statistics().agents]
    if set(names) != set(counted):
        yield f"its agents are {', '.join(names)}, but its tensors have {', '.join(counted)}"
    for number, threshold in enumerate(record.thresholds or ()):
        at = [agent.model for agent in threshold.agents]
        if at != names:
            yield f"thresholds.{number}: its agents are {', '.join(at)}, not {', '.join(names)}"
    if record.pairwise is not None:
        yield from _wrong_pairs(record.pairwise, names)
    if record.sample is None:
        for tensor in record.tensors:
            for problem in _impossible(tensor):
                yield f"tensor {tensor.name}: {problem}"
    for place, given, expected in differences(record, _rebuilt(record)):
        yield f"{'.'.join(place)} is {given}, but its counts give {expected}"
    if record.sample is not None and record.sample.parameters > record.parameters:
        yield f"sample.parameters is {record.sample.parameters} of {record.parameters}"


def _repeated(kind: str, names: Sequence[str]) -> Iterator[str]:
    for name, times in Counter(names).items():
        if times > 1:
            yield f"{kind}: {name} is there {times} times"


def _wrong_pairs(pairs: Sequence[PairRecord], names: Sequence[str]) -> Iterator[str]:
    # The number first: a long list of agents has far more pairs.
    is_whole = 2 * len(pairs) == len(names) * (len(names) - 1)
    if not is_whole or [(pair.first, pair.second) for pair in pairs] != [*combinations(names, 2)]:
        yield "pairwise does not list every two of its agents once, in their order"


def _impossible(tensor: TensorRecord) -> Iterator[str]:
    """Find counts that no tensor gives: each of k + 1 agents counts a parameter they changed."""
    agents = [agent for agent in tensor.agents if agent.weight != 0]
    for agent in tensor.agents:
        if len(agent.overlap_degree) != len(agents):
            yield (
                f"overlap_degree of {agent.model} has {len(agent.overlap_degree)} entries, and "
                f"{len(agents)} agents take part"
            )
        if agent.weight == 0 and agent.active:
            yield f"weight of {agent.model} is 0, and {agent.active} parameters are active"
    yield from impossible(agents, tensor.numel)


def impossible(agents: Sequence[AgentCounts], numel: int) -> Iterator[str]:
    """Find counts of agents that no tensor of ``numel`` parameters gives, in words."""
    changed = 0
    for others, counts in enumerate(zip(*(a.overlap_degree for a in agents), strict=True)):
        parameters, rest = divmod(sum(counts), others + 1)
        changed += parameters
        if rest or max(counts) > parameters:
            yield (
                f"overlap_degree.{others} of its agents is {', '.join(map(str, counts))}, but "
                f"{others + 1} agents count each of these parameters"
            )
    if changed > numel:
        yield f"{changed} parameters of {numel} are changed"


def _rebuilt(record: OverlapRecord) -> OverlapRecord:
    """The record with every field that follows from counts computed again."""
    statistics = record.statistics()
    rescales: dict[str, set[float]] = {agent.model: set() for agent in record.agents}
    for tensor in record.tensors:
        for own in tensor.agents:
            if own.weight != 0:
                rescales[own.model].add(own.rescale)
    agents = []
    for agent in record.agents:
        degree = agent.overlap_degree
        if record.sample is None:
            counted = statistics.agent(agent.model).overlap_degree
            degree = (*counted, *(0,) * (len(degree) - len(counted)))
        # A tensor that is copied has a λ and no counts.
        used = rescales[agent.model]
        is_known = record.sample or used <= {*different(agent.rescale)}
        rebuilt = _counted(agent, degree, statistics.parameters)
        agents.append(rebuilt.model_copy(update={} if is_known else {"rescale": setting(used)}))
    changes: dict[str, Any] = {
        "parameters": statistics.parameters,
        "epsilon": record.settings.epsilon,
        "agents": tuple(agents),
        "layers": layer_records(record.tensors),
    }
    if record.thresholds is not None:
        changes["thresholds"] = tuple(
            threshold.model_copy(
                update={
                    "agents": tuple(
                        _counted(agent, (agent.unique, agent.shared), statistics.parameters)
                        for agent in threshold.agents
                    )
                }
            )
            for threshold in record.thresholds
        )
    if record.pairwise is not None and record.sample is None:
        active = {agent.model: agent.active for agent in agents}
        changes["pairwise"] = tuple(
            _rebuilt_pair(pair, active[pair.first], active[pair.second]) for pair in record.pairwise
        )
    return record.model_copy(update=changes)


def _counted(agent: Agent, degree: tuple[int, ...], parameters: int) -> Agent:
    """The record of an agent with these counts."""
    overlap = AgentOverlap(model=agent.model, overlap_degree=degree, parameters=parameters)
    return agent.model_copy(update=counted_fields(type(agent), overlap))


def _rebuilt_pair(pair: PairRecord, first: int, second: int) -> PairRecord:
    """The same pair of agents with so many active parameters."""
    both = min(pair.both, first, second)
    either = first + second - both
    return pair.model_copy(update={"both": both, "jaccard": both / either if either else None})


def differences(
    given: Any, expected: Any, place: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Find where two values differ: the place, and both values there.

    Models, tuples and dictionaries are compared item by item, without intervals.
    """
    if given is expected:
        return
    if isinstance(given, BaseModel) and isinstance(expected, BaseModel):
        for name in type(given).model_fields:
            if name != "interval":
                yield from differences(
                    getattr(given, name), getattr(expected, name), (*place, name)
                )
    elif isinstance(given, dict) and isinstance(expected, dict):
        # Missing ones first.
        for name in sorted(
            {**given, **expected}, key=lambda name: name in given and name in expected
        ):
            yield from differences(given.get(name), expected.get(name), (*place, name))
    elif isinstance(given, tuple) and isinstance(expected, tuple):
        if len(given) != len(expected):
            yield (*place, "length"), len(given), len(expected)
        for number, (one, other) in enumerate(zip(given, expected, strict=False)):
            yield from differences(one, other, (*place, str(number)))
    elif isinstance(given, float) and isinstance(expected, int | float):
        if not math.isclose(given, expected, rel_tol=CLOSE, abs_tol=CLOSE):
            yield place, given, expected
    elif given != expected:
        yield place, given, expected
