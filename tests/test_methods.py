"""The methods in memory: ``merge_state_dicts``, ``merge_tensors``, and called with groups."""

from __future__ import annotations

import pytest
import reference
import torch
from mergekit import merge_methods
from mergekit.merge_methods import TensorGroup, merge_state_dicts, merge_tensors
from reference import same_bits

from mergekit_ram import RamMerge, RamPlusMerge
from mergekit_ram.errors import InputError, PlanError


def models(agents: int = 3, dtype: torch.dtype = torch.float32) -> dict[str, dict]:
    """A base and agents of two tensors; overlaps differ strongly between the tensors."""
    generator = torch.Generator().manual_seed(0)
    base = {"crowded": torch.randn(40, 8, generator=generator).to(dtype)}
    base["quiet"] = torch.randn(500, generator=generator).to(dtype)
    found = {"base": base}
    for number in range(agents):
        agent = {}
        for name, share in (("crowded", 0.7), ("quiet", 0.1)):
            touched = torch.rand(base[name].shape, generator=generator) < share
            step = torch.randn(base[name].shape, generator=generator) * 0.01
            agent[name] = torch.where(touched, base[name] + step, base[name].float()).to(dtype)
        found[f"agent {number}"] = agent
    return found


def expected(inputs: dict[str, dict], **settings) -> dict[str, torch.Tensor]:
    agents = {name: model for name, model in inputs.items() if name != "base"}
    return reference.merge(inputs["base"], agents, **settings)


def test_the_registry_holds_our_methods():
    assert isinstance(merge_methods.get("ram"), RamMerge)
    assert isinstance(merge_methods.get("ram_plus"), RamPlusMerge)


def test_specs_are_complete():
    for method, names in (
        (RamMerge(), ["epsilon", "scale", "weight", "overlap_power"]),
        (
            RamPlusMerge(),
            ["epsilon", "scale", "weight", "overlap_power", "r", "alpha", "rescale", "statistics"],
        ),
    ):
        assert [parameter.name for parameter in method.spec.parameters] == names
        assert method.spec.pretty_name.startswith("Reinforced Agent Merging")
        assert method.spec.reference_url == "https://arxiv.org/abs/2601.13572"
        defaults = {p.name: p.default for p in method.spec.parameters}
        assert defaults["epsilon"] == 1e-5
        assert defaults.get("r", 0.1) == 0.1
        assert defaults.get("alpha", 2.0) == 2.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_dicts_are_merged_with_the_ratio_of_all_tensors(dtype):
    inputs = models(dtype=dtype)
    merged = merge_state_dicts(inputs, "ram_plus", base="base")
    for name, tensor in expected(inputs, r=0.1, alpha=2.0).items():
        assert same_bits(merged[name], tensor.to(dtype))


def test_the_ratio_of_one_tensor_alone_would_be_another():
    inputs = models()
    whole = merge_state_dicts(inputs, "ram_plus", base="base")["quiet"]
    alone = merge_tensors([m["quiet"] for m in inputs.values()], "ram_plus", base_index=0)
    assert not torch.equal(whole, alone)
    quiet = {name: {"quiet": model["quiet"]} for name, model in inputs.items()}
    assert same_bits(alone, expected(quiet, r=0.1, alpha=2.0)["quiet"])


def test_a_method_called_with_groups_counts_over_all_of_them():
    inputs = models()
    groups = [
        TensorGroup.from_tensors(
            [model[name] for model in inputs.values()], ids=list(inputs), base_index=0, name=name
        )
        for name in inputs["base"]
    ]
    results = merge_methods.get("ram_plus")(groups, parameters={"r": 0.3, "alpha": 0.5})
    for name, merged in zip(inputs["base"], results, strict=True):
        assert same_bits(merged, expected(inputs, r=0.3, alpha=0.5)[name])


def test_ram_is_ram_plus_without_rescaling():
    inputs = models()
    ram = merge_state_dicts(inputs, "ram", base="base")
    zero = merge_state_dicts(inputs, "ram_plus", base="base", parameters={"r": 0})
    given = merge_state_dicts(inputs, "ram_plus", base="base", parameters={"rescale": 1.0})
    for name, tensor in expected(inputs).items():
        assert same_bits(ram[name], tensor)
        assert same_bits(zero[name], tensor)
        assert same_bits(given[name], tensor)


def test_rescale_by_hand_replaces_the_computed_factor_of_one_agent():
    inputs = models()
    by_hand = merge_state_dicts(
        inputs,
        "ram_plus",
        base="base",
        parameters={"rescale": {"agent 0": 1.7, "agent 1": None, "agent 2": None}},
    )
    agents = {name: model for name, model in inputs.items() if name != "base"}
    counts = reference.count(inputs["base"], agents)
    factors = {name: counts.rescale(name, 0.1, 2.0) for name in agents} | {"agent 0": 1.7}
    for name, base in inputs["base"].items():
        tensors = {agent: model[name] for agent, model in agents.items()}
        assert same_bits(by_hand[name], reference.merge_tensor(base, tensors, rescale=factors))


def test_an_agent_of_weight_zero_takes_no_part_and_is_not_counted():
    inputs = models()
    weightless = merge_state_dicts(
        inputs,
        "ram_plus",
        base="base",
        parameters={"weight": {"agent 0": 1.0, "agent 1": 0.0, "agent 2": 1.0}},
    )
    without = merge_state_dicts(
        {name: model for name, model in inputs.items() if name != "agent 1"},
        "ram_plus",
        base="base",
    )
    for name in without:
        assert same_bits(weightless[name], without[name])


def test_weight_scale_and_overlap_power_follow_their_formulas():
    base, one, two = torch.zeros(3), torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0.0, 3.0, 0.0])
    merged = merge_tensors(
        [base, one, two],
        "ram",
        ids=["base", "one", "two"],
        base_index=0,
        parameters={"weight": {"one": 2.0, "two": -1.0}, "scale": 10.0, "overlap_power": 0.5},
    )
    assert merged.tolist() == pytest.approx([20.0, 10 * (2.0 - 3.0) / 2**0.5, 0.0])


def test_dtype_rounds_inputs_first_and_out_dtype_the_result_last():
    inputs = models()
    rounded = {k: {n: t.bfloat16() for n, t in m.items()} for k, m in inputs.items()}
    merged = merge_state_dicts(
        inputs, "ram_plus", base="base", dtype=torch.bfloat16, out_dtype=torch.float32
    )
    for name, tensor in expected(rounded, r=0.1).items():
        assert same_bits(merged[name], tensor)


def test_agents_order_changes_no_more_than_rounding():
    inputs = models()
    names = ["agent 2", "base", "agent 0", "agent 1"]
    merged = merge_state_dicts(inputs, "ram_plus", base="base")
    again = merge_state_dicts({name: inputs[name] for name in names}, "ram_plus", base="base")
    for name in merged:
        torch.testing.assert_close(merged[name], again[name], rtol=2e-7, atol=1e-9)


def test_float32_agreement_with_mergekits_own_ram():
    from mergekit.merge_methods.ram import ram_merge

    inputs = models()
    ours = merge_state_dicts(inputs, "ram", base="base")
    theirs = merge_state_dicts(inputs, ram_merge, base="base")
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-7)


def test_modules_are_merged_without_gradients():
    layers = [torch.nn.Linear(3, 2) for _ in range(3)]
    merged = merge_state_dicts(layers, "ram_plus", base=0)
    assert not any(tensor.requires_grad for tensor in merged.values())
    assert set(merged) == {"weight", "bias"}


def test_tied_weights_of_a_module_are_counted_once():
    inputs = models()
    for model in inputs.values():
        model["head"] = model["crowded"]
    # Beyond every ratio, so that no clipping hides a second count.
    settings = {"alpha": 1e6}
    merged = merge_state_dicts(inputs, "ram_plus", base="base", parameters=settings)
    once = {name: {k: t for k, t in m.items() if k != "head"} for name, m in inputs.items()}
    for name, tensor in expected(once, r=0.1, alpha=1e6).items():
        assert same_bits(merged[name], tensor)
    assert same_bits(merged["head"], merged["crowded"])


def test_buffers_are_copied_when_equal_and_refused_when_not():
    inputs = models()
    for model in inputs.values():
        model["steps"] = torch.tensor([3, 4])
    assert merge_state_dicts(inputs, "ram_plus", base="base")["steps"].tolist() == [3, 4]
    inputs["agent 0"]["steps"] = torch.tensor([3, 5])
    with pytest.raises(ValueError, match="'steps' differs between inputs"):
        merge_state_dicts(inputs, "ram_plus", base="base")


def test_a_group_in_a_graph_without_counts_is_refused_and_never_counted_alone():
    group = TensorGroup.from_tensors(
        [torch.zeros(2), torch.ones(2)], ids=["base", "a"], base_index=0, name="w"
    )
    method = RamPlusMerge()
    bound = method._bind_parameters([group], {})
    with pytest.raises(PlanError, match="tensor w is to be merged alone, without the counts"):
        method._execute_resolved([group], bound)
    # The context of an in-memory call must not outlive the call.
    method([group])
    with pytest.raises(PlanError, match="give `rescale` for every agent"):
        method._execute_resolved([group], bound)


@pytest.mark.parametrize("method", ["ram", "ram_plus"])
@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_nan_is_refused_with_the_names_of_model_and_tensor(method, weight):
    inputs = models()
    inputs["agent 1"]["quiet"][3] = float("nan")
    weights = {"agent 0": 1.0, "agent 1": weight, "agent 2": 1.0}
    with pytest.raises(InputError, match="model agent 1, tensor quiet: holds nan; a merge with"):
        merge_state_dicts(inputs, method, base="base", parameters={"weight": weights})


def test_overflow_of_the_output_dtype_names_tensor_and_remedy():
    message = "tensor w: a merged value of size 70000 does not fit torch.float16.*`out_dtype:`"
    with pytest.raises(InputError, match=message):
        merge_tensors(
            [torch.zeros(2), torch.full((2,), 7e4)],
            "ram",
            base_index=0,
            name="w",
            out_dtype=torch.float16,
        )


def test_quantised_weights_are_refused():
    tensors = [torch.zeros(2), torch.ones(2).to(torch.float8_e4m3fn)]
    with pytest.raises(InputError, match=r"tensor w: torch\.float8_e4m3fn weights cannot be"):
        merge_tensors(tensors, "ram", base_index=0, name="w", dtype=torch.float32)


@pytest.mark.parametrize(
    ("ids", "base", "message"),
    [
        (["a", "b"], None, "requires a base input.*models: a, b; base: None.*`base_model:`"),
        (["a"], "a", "requires at least 1 non-base inputs.*models: a; base: a"),
        (["a", "b", "b"], "a", "Duplicate merge inputs.*every agent once"),
        (["a", "b"], "c", "Base input is not present.*models: a, b; base: c"),
    ],
)
def test_sets_of_models_that_make_no_merge_are_refused(ids, base, message):
    with pytest.raises(InputError, match=message):
        RamMerge().validate_inputs(ids, base)
