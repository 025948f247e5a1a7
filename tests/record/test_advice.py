"""What findings say, and where: untouched parts, agents that changed the same weights."""

from __future__ import annotations

import page_records as records
import pytest
from page_records import Sketch

from mergekit_ram.record.findings import findings_of, untouched_parts
from mergekit_ram.record.schema import OverlapRecord, TensorAgent, TensorRecord
from mergekit_ram.show.terminal import as_text


def texts(record: OverlapRecord) -> dict[str, str]:
    return {finding.code: finding.text for finding in findings_of(record)}


def tensors(*changes: tuple[str, int, float]) -> tuple[TensorRecord, ...]:
    """Tensors that an agent changed, by name, size and share of what it changed."""
    return tuple(
        TensorRecord(
            name=name,
            numel=numel,
            epsilon=1e-5,
            agents=(agent_of(round(numel * change)),),
            loading="0123456789abcdef",
        )
        for name, numel, change in changes
    )


def agent_of(active: int) -> TensorAgent:
    return TensorAgent(model="one", weight=1.0, rescale=1.0, overlap_degree=(active,))


def layer(number: int, changed: bool, **odd: float) -> list[tuple[str, int, float]]:
    parts = {"self_attn.q_proj.weight": 1000, "mlp.up_proj.weight": 1000}
    parts |= {"self_attn.q_proj.bias": 4, "input_layernorm.weight": 4}
    return [
        (f"model.layers.{number}.{part}", size, odd.get(part.split(".")[1], 0.5 * changed))
        for part, size in parts.items()
    ]


def test_a_norm_or_a_bias_is_no_news():
    found = layer(0, changed=True)
    quiet = [(n, s, 0.0 if s < 10 else c) for n, s, c in found]
    assert list(untouched_parts(tensors(*quiet, ("model.norm.weight", 4, 0.0)))) == []


def test_a_layer_is():
    parts = untouched_parts(tensors(*layer(0, True), *layer(1, False), *layer(2, True)))
    assert list(parts) == ["layer model.layers.1"]


def test_a_whole_kind_of_tensors_is():
    found = [*layer(0, True, q_proj=0.0), *layer(1, True, q_proj=0.0), ("lm_head.weight", 99, 0.0)]
    assert list(untouched_parts(tensors(*found))) == [
        "every model.layers.*.self_attn.q_proj",
        "lm_head",
    ]


def test_one_tensor_of_many_is_not():
    found = [*layer(0, True, q_proj=0.0), *layer(1, True)]
    assert list(untouched_parts(tensors(*found))) == []


def test_an_expert_is():
    found = [
        (f"model.layers.0.mlp.experts.{expert}.up_proj.weight", 100, 0.5 * (expert != 2))
        for expert in range(4)
    ]
    assert list(untouched_parts(tensors(*found))) == ["expert 2 of model.layers.0"]


SAME = (Sketch("one", 0.3, (5.0, 95.0)), Sketch("two", 0.3, (5.0, 95.0)))
"""ρ is 19."""


def test_a_limit_that_all_reach_is_no_reason_for_a_larger_alpha():
    found = texts(records.merge(SAME))
    assert found.keys() == {"all-clipped"}
    assert "That is no reason for a larger alpha" in found["all-clipped"]
    apart = (SAME[0], Sketch("two", 0.3, (50.0, 50.0)))
    assert texts(records.merge(apart)).keys() == set()


FEW = (Sketch("one", 0.3, (0.5, 99.5)), Sketch("two", 0.3, (30.0, 70.0)))


def test_advice_that_contradicts_itself_is_not_given():
    record = records.inspection(FEW)
    agents = tuple(agent.model_copy(update={"realised_rescale": 1.0}) for agent in record.agents)
    lost = record.model_copy(update={"agents": agents})
    assert "λ has nothing to act on" in texts(lost)["few-unique"]
    assert "rescale-lost" not in texts(lost)
    # Over directions there is no λ.
    directions = lost.model_copy(update={"merge_method": "ram_directions"})
    assert not {"few-unique", "rescale-lost"} & texts(directions).keys()


@pytest.mark.parametrize(("r", "is_large"), [(0.1, False), (0.5, False), (0.51, True)])
def test_a_rescale_above_two_is_found(r, is_large):
    record = records.merge(SAME)
    agents = tuple(agent.model_copy(update={"rescale": 1 + 2 * r}) for agent in record.agents)
    found = texts(record.model_copy(update={"agents": agents}))
    assert ("large-rescale" in found) == is_large
    if is_large:
        assert found["large-rescale"].startswith("λ of one (2.02), two (2.02) is above 2: the")


def test_small_tensors_are_not_ranked_by_change():
    record = records.merge()
    biases = tuple(
        tensor.model_copy(
            update={
                "agents": (agent_of(round(tensor.numel * (0.9 if "bias" in tensor.name else 0.1))),)
            }
        )
        for tensor in record.tensors
    )
    text = as_text(record.model_copy(update={"tensors": biases}))
    ranked = text.split("Tensors with the most change")[1].split("Layers with")[0]
    assert "bias" not in ranked
    assert ranked.count(" 10.00 %") == 5
