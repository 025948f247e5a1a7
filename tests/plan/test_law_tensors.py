"""First law: every tensor that went in came out, or is named."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from families import Family, assert_weights, warnings_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import Weights, read_weights
from safetensors.torch import load_file, save_file
from test_references import adapter
from transformers import AutoModelForCausalLM

KINDS = [
    "Qwen2",  # dense
    "Qwen2, tied",
    "DeepSeek-V3, first layer dense",  # experts one by one
    "gpt-oss",  # packed experts
    "Qwen3-VL",
    "code of its own",
]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def family_of(folder: Path, kind: str) -> Family:
    if kind != "code of its own":
        return Family(folder, kind)
    family = Family(folder, "Olmo")
    for name in ("base", *family.agents):
        family.configure(name, architectures=["NobodyKnowsForCausalLM"])
    return family


def projection(weights: Weights) -> str:
    """The name of a matrix in a layer, without its ending."""
    names = (n for n in sorted(weights) if "proj" in n and n.endswith(".weight") and ".0." in n)
    return next(names).removesuffix(".weight")


def with_lora(weights: Weights, module: str, *, beside: bool) -> Weights:
    """The names of a folder that was saved with its adapter around it."""
    named = {f"base_model.model.{name}": tensor for name, tensor in weights.items()}
    module = f"base_model.model.{module}"
    named[f"{module}.base_layer.weight"] = named.pop(f"{module}.weight")
    if beside:
        named[f"{module}.lora_A.default.weight"] = torch.ones(2, 32, dtype=torch.bfloat16)
    return named


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["base", "tool"])
def test_a_folder_saved_with_its_adapter_around_it(tmp_path, kind, name):
    family = family_of(tmp_path, kind)
    own = family.base if name == "base" else family.agents[name]
    module = projection(own)
    family.write(name, with_lora(own, module, beside=True))
    line = family.refusal()
    assert line.startswith(f"Error: model {family.path(name)}: its file holds tensors beside the ")
    assert f"base_model.model.{module}.lora_A.default.weight" in line
    family.write(name, with_lora(own, module, beside=False))
    assert_weights(family.merge(), family.expected())


@pytest.mark.parametrize("name", ["base", "tool"])
def test_a_head_that_was_trained_beside_an_adapter(tmp_path, name):
    family = Family(tmp_path)
    own = dict(family.base if name == "base" else family.agents[name])
    own["lm_head.original_module.weight"] = family.base[HEAD].clone()
    own["lm_head.modules_to_save.default.weight"] = own.pop(HEAD)
    family.write(name, own)
    assert "(lm_head.modules_to_save.default.weight), such as those of an" in family.refusal()


def test_the_output_of_slices_has_the_base_s_layout_too(tmp_path):
    family = Family(tmp_path, "Qwen3-MoE")
    expected = family.expected()
    model = type(family.model).from_pretrained(family.path("tool"), dtype=torch.bfloat16)
    family.write("tool", {name: t.contiguous() for name, t in model.state_dict().items()})
    paths = [str(family.path(name)) for name in ("base", "coder", "tool")]
    sources = [{"model": path, "layer_range": [0, 2]} for path in paths]
    assert_weights(family.merge(models=None, slices=[{"sources": sources}]), expected)
    modules = {"default": {"models": family.config()["models"]}}
    assert_weights(family.merge(models=None, modules=modules), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_trained_tensors_in_modules_of_the_base_are_refused_and_other_ones_told(
    tmp_path, caplog, kind
):
    family = family_of(tmp_path, kind)
    own, module = family.agents["tool"], projection(family.base)
    family.write("tool", own | {f"{module}.bias_of_nobody": torch.ones(2)})
    assert f"({module}.bias_of_nobody)" in family.refusal()
    family.write("tool", own | {"value_head.weight": torch.ones(2)})
    with warnings_of(caplog) as warnings:
        assert_weights(family.merge(), family.expected())
    assert [w for w in warnings if "value_head.weight (2 parameters)" in w]


@pytest.mark.parametrize("kind", ["Qwen2, tied", "Gemma3, text"])
@pytest.mark.parametrize("names", [["base"], ["tool"], ["base", "coder", "tool"]])
def test_an_embedding_that_is_stored_as_the_head(tmp_path, kind, names):
    """As safetensors' save_model does, which keeps the first name of a shared tensor."""
    family = Family(tmp_path, kind)
    expected = family.expected()
    for name in names:
        family.rename(name, lambda key: HEAD if key == EMBEDDING else key)
    assert_weights(family.merge(), expected)


@pytest.mark.parametrize("parts", ["linear_attn.in_proj.weight", "deepstack_merger_list.3.weight"])
def test_parts_that_only_one_layer_or_no_plan_has_are_merged(tmp_path, parts):
    family = Family(tmp_path, "Qwen3-VL")
    name = f"model.language_model.layers.0.{parts}"
    for owner, own in {"base": family.base, **family.agents}.items():
        own[name] = torch.full((8, 8), 0.5, dtype=torch.bfloat16)
        if owner == "tool":
            own[name][3] = 2.0
        family.write(owner, own)
    written = family.merge()
    assert written[name][3].min() > 1.9
    assert_weights(written, family.expected())


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Qwen3-Next", "mtp.fc.weight"),
        ("GLM-4.5-MoE", "model.layers.46.eh_proj.weight"),
        ("GPT-2", "transformer.h.0.attn.bias"),
    ],
)
def test_what_transformers_passes_over_in_the_base_is_kept(tmp_path, caplog, kind, name):
    """Other programs load it, such as vLLM the heads that predict several tokens."""
    family = Family(tmp_path, kind)
    family.base[name] = torch.full((8, 8), 0.5, dtype=torch.bfloat16)
    family.agents["tool"][name] = family.base[name] + 1
    family.write("base", family.base)
    family.write("tool", family.agents["tool"])
    assert_weights(family.merge(), family.expected())
    del family.base[name]
    family.write("base", family.base)
    with warnings_of(caplog) as warnings:
        written = family.merge()
    assert name not in written
    assert not [warning for warning in warnings if name in warning]


# Adapters


def merged_with(family: Family, folder: Path) -> tuple[Weights, Weights]:
    """A merge with a base and its adapter as an agent, and that agent's weights."""
    cache = family.path("cache")
    models = [{"model": str(family.path("coder"))}, {"model": f"{family.path('base')}+{folder}"}]
    written = family.merge("--lora-merge-cache", str(cache), models=models)
    (made,) = cache.iterdir()
    return written, read_weights(made)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("Qwen2", {"use_rslora": True, "use_dora": True}),
        ("Qwen2, tied", {"modules_to_save": ["lm_head"], "bias": "lora_only"}),
        ("Qwen2", {"trainable_token_indices": [1, 5]}),
        ("Qwen3-MoE", {"target_parameters": ["mlp.experts.gate_up_proj"]}),
    ],
)
def test_all_that_an_adapter_holds_is_applied(tmp_path, kind, given):
    import peft

    family = Family(tmp_path, kind)
    folder = adapter(family, "adapter", **given)
    weights = load_file(folder / "adapter_model.safetensors")
    torch.manual_seed(1)
    trained = {name: tensor + 0.1 * torch.randn(tensor.shape) for name, tensor in weights.items()}
    save_file(trained, folder / "adapter_model.safetensors")
    base = AutoModelForCausalLM.from_pretrained(family.path("base"), dtype=torch.bfloat16)
    model = peft.PeftModel.from_pretrained(base, folder).merge_and_unload()
    model.save_pretrained(family.path("right"))
    right = read_weights(family.path("right"))
    written, found = merged_with(family, folder)
    assert_weights(found, right)
    agents = {"coder": family.agents["coder"], "lora": right}
    untied = {HEAD: family.base[EMBEDDING]} if HEAD in right.keys() - family.base.keys() else {}
    agents["coder"] = agents["coder"] | ({HEAD: agents["coder"][EMBEDDING]} if untied else {})
    assert_weights(written, family.expected(family.base | untied, agents))


@pytest.mark.parametrize("parts", [["gate_proj"], ["gate_proj", "up_proj"]])
def test_tensors_of_an_adapter_that_find_no_place_are_refused(tmp_path, parts):
    """A pattern with the expert's number fits nothing where transformers packs the experts."""
    family = Family(tmp_path, "Qwen3-MoE")
    folder = adapter(family, "adapter", target_modules=r".*(q_proj|experts\.\d+\.gate_proj)")
    weights = load_file(folder / "adapter_model.safetensors")
    for part, number in itertools.product(parts, range(4)):
        module = f"base_model.model.model.layers.0.mlp.experts.{number}.{part}"
        weights[f"{module}.lora_A.weight"] = torch.ones(2, 32)
        weights[f"{module}.lora_B.weight"] = torch.ones(16, 2)
    save_file(weights, folder / "adapter_model.safetensors")
    model = f"{family.path('base')}+{folder}"
    line = family.refusal("--lora-merge-cache", str(tmp_path / "c"), models=[{"model": model}])
    assert line.startswith(
        f"Error: model {model}: the adapter {folder} does not fit: these of its tensors belong to "
        "nothing in the base: base_model.model.model.layers.0.mlp.experts."
    )
    assert list((tmp_path / "c").iterdir()) == []


def test_a_base_of_an_adapter_is_under_transformers_names(tmp_path):
    family = Family(tmp_path)
    model = f"{family.path('base')}+{adapter(family, 'adapter')}"
    family.write("base", with_lora(family.base, projection(family.base), beside=False))
    line = family.refusal("--lora-merge-cache", str(tmp_path / "c"), models=[{"model": model}])
    assert line.startswith(f"Error: model {model}: the base {family.path('base')} lacks ")
    assert line.endswith("which would make them up. Save it with save_pretrained.")


@pytest.mark.parametrize("kind", ["PromptTuning", "PrefixTuning", "PromptEncoder"])
def test_an_adapter_without_weights_is_told_by_its_type_before_all_else(tmp_path, kind):
    import peft

    family = Family(tmp_path)
    settings = getattr(peft, f"{kind}Config")(
        num_virtual_tokens=2, num_attention_heads=1, task_type="CAUSAL_LM"
    )
    model = AutoModelForCausalLM.from_pretrained(family.path("base"))
    peft.get_peft_model(model, settings).save_pretrained(family.path("prompt"))
    name = f"{family.path('base')}+{family.path('prompt')}"
    line = family.refusal(models=[{"model": name}])
    assert f"is of the `peft_type` {settings.peft_type.value}, which changes no weights" in line


# At random

OPERATIONS = ("wrap", "wrap some", "put beside", "put apart", "rename")


@pytest.fixture(scope="module", params=["Qwen2, tied", "Qwen3-MoE"])
def family(request, tmp_path_factory) -> Family:
    return Family(tmp_path_factory.mktemp("random"), request.param)


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(
    operation=st.sampled_from(OPERATIONS),
    chosen=st.integers(0, 10_000),
    word=st.sampled_from(["_orig_mod", "module", "base_layer", "lora_C", "own"]),
)
def test_whatever_is_done_to_an_agent_s_names_nothing_is_lost_silently(
    caplog, family, operation, chosen, word
):
    own = dict(family.agents["tool"])
    name = sorted(own)[chosen % len(own)]
    module, _, ending = name.rpartition(".")
    extra = f"{module}.{word}_of_nobody.x" if operation == "put beside" else f"{word}_of_nobody.x"
    if operation == "wrap":
        own = {f"{word}.{key}": tensor for key, tensor in own.items()}
    elif operation == "wrap some":
        own[f"{module}.{word}.{ending}"] = own.pop(name)
    elif operation == "rename":
        own[extra] = own.pop(name)
    else:
        own[extra] = torch.ones(3)
    family.write("tool", own)
    with warnings_of(caplog) as warnings:
        result = family.run()
    if result.exit_code:
        assert result.output.splitlines()[-1].startswith(f"Error: model {family.path('tool')}: ")
        return
    written = read_weights(family.path("out"))
    assert_weights(written, family.expected())
    if extra in own:
        assert any(extra in warning for warning in warnings)
