"""Bad input ends in one clear line, before or instead of a merge."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
import yaml
from click.testing import CliRunner
from models import Trio, make_agent, make_base, read_weights, run_yaml, succeed, write_weights
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

BOTH = pytest.mark.parametrize("method", ["ram", "ram_plus"])


def refusal(trio: Trio, method: str, *options: str, **changes: Any) -> str:
    """The one line in which a merge ends that writes nothing."""
    config = trio.config(method, **changes)
    result = run_yaml(config, trio.folder / "out", "--no-copy-tokenizer", *options)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert not list(trio.folder.glob("out/*")), "something was written"
    return result.output.splitlines()[-1]


def agent(trio: Trio, name: str = "tool") -> Path:
    return trio.folder / name


def change(trio: Trio, name: str, **tensors: torch.Tensor | None) -> None:
    """Replace (or with None remove) tensors of a model."""
    weights = read_weights(trio.folder / name)
    for key, tensor in tensors.items():
        if tensor is None:
            del weights[key]
        else:
            weights[key] = tensor
    write_weights(trio.folder / name, weights, trio.folder / name)


@BOTH
def test_no_base(trio: Trio, method):
    line = refusal(trio, method, base_model=None)
    assert f"Error: {method}: Merge method requires a base input" in line
    assert "The method needs `base_model:`" in line


@BOTH
def test_no_agents(trio: Trio, method):
    line = refusal(trio, method, models=[{"model": trio.base_path}])
    assert f"Error: {method}: Merge method requires at least 1 non-base inputs" in line
    assert "every agent once under `models:`" in line


@BOTH
@pytest.mark.parametrize("twice", ["base", "tool"])
def test_a_model_twice(trio: Trio, method, twice):
    models = [{"model": model} for model in trio.agents]
    models += [{"model": str(trio.folder / twice)}] * (2 if twice == "base" else 1)
    line = refusal(trio, method, models=models)
    assert f"Error: {method}: Duplicate merge inputs" in line
    assert str(trio.folder / twice) in line


@BOTH
def test_a_folder_that_does_not_exist(trio: Trio, method):
    missing = str(trio.folder / "nobody")
    line = refusal(trio, method, models=[{"model": missing}])
    assert line == (
        f"Error: model {missing}: there is no folder {missing}. Correct the path; a model of the "
        "hub is written as owner/name."
    )


@BOTH
def test_one_folder_in_two_spellings(trio: Trio, method):
    tool = str(agent(trio))
    models = [{"model": tool}, {"model": tool + "/"}]
    assert refusal(trio, method, models=models) == (
        f"Error: the models {tool} and {tool}/ are the same folder; a merge would count its "
        "updates twice. Name every model once, and in one way."
    )


@BOTH
def test_a_local_folder_that_looks_like_a_model_of_the_hub(trio: Trio, method, monkeypatch):
    monkeypatch.chdir(trio.folder)
    line = refusal(trio, method, models=[{"model": "agents/nobody"}])
    assert line.startswith(f"Error: a configuration of the models {trio.base_path}, agents/nobody")
    assert line.endswith("A local folder is written as ./folder, a model of the hub as owner/name.")


@BOTH
def test_a_missing_adapter(trio: Trio, method):
    missing = str(trio.folder / "adapter")
    line = refusal(trio, method, models=[{"model": f"{agent(trio)}+{missing}"}])
    assert line == f"Error: model {agent(trio)}+{missing}: there is no adapter folder {missing}."


@BOTH
def test_a_folder_without_weights(trio: Trio, method):
    (agent(trio) / "model.safetensors").unlink()
    line = refusal(trio, method)
    assert line.startswith(f"Error: model {agent(trio)}: cannot read {agent(trio)}: Unable to find")
    assert line.endswith("Repair or re-download this checkpoint.")


@BOTH
def test_a_folder_without_configuration(trio: Trio, method):
    config = agent(trio) / "config.json"
    config.unlink()
    assert f"cannot read {config}: the file is missing." in refusal(trio, method)


@BOTH
@pytest.mark.parametrize("kept", [0, 7, 2000, -1])
def test_truncated_and_empty_safetensors(trio: Trio, method, kept):
    file = agent(trio) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    line = refusal(trio, method)
    assert line.startswith(f"Error: model {agent(trio)}: cannot read {agent(trio)}")
    assert line.endswith("Repair or re-download this checkpoint.")


def shard(folder: Path) -> list[Path]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    return sorted(folder.glob("*.safetensors"))


@BOTH
def test_an_index_that_names_a_missing_shard(trio: Trio, method):
    first = shard(agent(trio))[0]
    first.unlink()
    line = refusal(trio, method)
    assert line == (
        f"Error: model {agent(trio)}: cannot read {first}: the file is missing. Repair or "
        "re-download this checkpoint."
    )


@BOTH
def test_an_empty_shard(trio: Trio, method):
    first = shard(agent(trio))[0]
    first.write_bytes(b"")
    assert f"cannot read {first}: the file is empty" in refusal(trio, method)


@BOTH
def test_an_index_that_promises_too_much(trio: Trio, method):
    shard(agent(trio))
    index = agent(trio) / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.extra"] = next(iter(content["weight_map"].values()))
    index.write_text(json.dumps(content))
    assert "its index promises tensor model.extra" in refusal(trio, method)
    index.write_text("{")
    assert f"Error: model {agent(trio)}: cannot read" in refusal(trio, method)


@BOTH
def test_a_missing_required_tensor(trio: Trio, method):
    name = "model.layers.1.mlp.up_proj.weight"
    change(trio, "tool", **{name: None})
    line = refusal(trio, method)
    assert line.startswith(
        f"Error: model {agent(trio)}: tensor {name} is missing, and the architecture requires it."
    )


@BOTH
def test_another_architecture(trio: Trio, method):
    config = json.loads((agent(trio) / "config.json").read_text())
    config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (agent(trio) / "config.json").write_text(json.dumps(config))
    line = refusal(trio, method)
    assert "do not fit together: Must specify --allow-crimes" in line
    assert "All models must be of one architecture and size" in line


@BOTH
def test_another_shape(trio: Trio, method):
    shutil.rmtree(agent(trio))
    make_base(agent(trio), intermediate_size=64)
    line = refusal(trio, method)
    assert f"Error: model {agent(trio)}, tensor model.layers.0.mlp." in line
    assert f"but the base {trio.base_path} has [" in line
    assert "All models must be of one architecture and size" in line


@BOTH
def test_another_vocabulary_points_to_the_tokenizer(trio: Trio, method):
    shutil.rmtree(agent(trio))
    make_base(agent(trio), vocab_size=104)
    line = refusal(trio, method)
    assert line == (
        f"Error: model {agent(trio)}, tensor model.embed_tokens.weight: shape [104, 32], but the "
        f"base {trio.base_path} has [96, 32]. The vocabularies differ: align them with "
        "`tokenizer: {source: union}` (or `base`) in the YAML."
    )


@BOTH
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["base", "tool"])
def test_not_finite(trio: Trio, method, name, value):
    tensor = read_weights(trio.folder / name)["model.norm.weight"]
    tensor[5] = value
    change(trio, name, **{"model.norm.weight": tensor})
    result = run_yaml(trio.config(method), trio.folder / "out", "--no-copy-tokenizer")
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == (
        f"Error: model {trio.folder / name}, tensor model.norm.weight: holds {value}; a merge "
        "with it would be wrong. Repair or re-download this checkpoint."
    )
    assert_not_loadable(trio.folder / "out")


def assert_not_loadable(folder: Path) -> None:
    with pytest.raises((OSError, ValueError)):
        AutoModelForCausalLM.from_pretrained(folder)


@BOTH
def test_overflow_of_the_output_dtype(trio: Trio, method):
    tensor = read_weights(agent(trio))["model.norm.weight"]
    tensor[5] = 1e5
    change(trio, "tool", **{"model.norm.weight": tensor})
    config = trio.config(method, out_dtype="float16")
    result = run_yaml(config, trio.folder / "out", "--no-copy-tokenizer")
    assert result.exit_code == 1
    assert re.fullmatch(
        r"Error: tensor model\.norm\.weight: a merged value of size \d+ does not fit "
        r"torch\.float16, whose largest is 65504\. Set a wider `out_dtype:`, or a smaller "
        r"`scale`\.",
        result.output.splitlines()[-1],
    )
    assert_not_loadable(trio.folder / "out")


@BOTH
def test_float8_weights(trio: Trio, method):
    name = "model.layers.0.mlp.up_proj.weight"
    tensor = read_weights(agent(trio))[name].to(torch.float8_e4m3fn)
    change(trio, "tool", **{name: tensor})
    assert refusal(trio, method) == (
        f"Error: model {agent(trio)}, tensor {name}: torch.float8_e4m3fn weights cannot be "
        "merged; dequantise the model to bfloat16, float16 or float32 first"
    )


@BOTH
def test_packed_integer_weights(trio: Trio, method):
    name = "model.layers.0.mlp.up_proj.weight"
    tensor = torch.zeros(read_weights(agent(trio))[name].shape, dtype=torch.uint8)
    change(trio, "tool", **{name: tensor})
    assert f"tensor {name}: torch.uint8 weights cannot be merged" in refusal(trio, method)


@BOTH
def test_a_quantised_model(trio: Trio, method):
    path = agent(trio) / "config.json"
    config = json.loads(path.read_text()) | {"quantization_config": {"quant_method": "gptq"}}
    path.write_text(json.dumps(config))
    assert refusal(trio, method) == (
        f"Error: model {agent(trio)}: its weights are quantised (quantization_config in {path}: "
        "gptq) and cannot be subtracted; merge its bfloat16, float16 or float32 original"
    )


@BOTH
@pytest.mark.parametrize("where", ["top", "model"])
def test_parameters_out_of_range(trio: Trio, method, where):
    changes: dict[str, Any] = {"parameters": {"epsilon": "tiny"}}
    line = "Error: parameter 'epsilon' must be a finite number ≥ 0; got 'tiny'"
    if where == "model":
        models = trio.config(method)["models"]
        models[1]["parameters"] = {"weight": [{"filter": "mlp", "value": ".inf"}]}
        changes = {"models": models}
        line = "Error: parameter 'weight' must be a finite number; got '.inf'"
    assert refusal(trio, method, **changes) == line


@BOTH
def test_an_output_folder_that_cannot_be_made(trio: Trio, method):
    (trio.folder / "file").write_text("")
    out = trio.folder / "file" / "out"
    recipe = trio.folder / "recipe.yml"
    recipe.write_text(yaml.safe_dump(trio.config(method)))
    from mergekit.scripts.run_yaml import main

    result = CliRunner().invoke(main, [str(recipe), str(out), "--no-copy-tokenizer"])
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == (
        f"Error: output folder {out}: {trio.folder / 'file'} is not a folder that can be written "
        "to. Choose another one."
    )
    assert "Counting overlaps" not in result.output


@BOTH
def test_a_disk_without_room(trio: Trio, method, monkeypatch):
    usage = shutil.disk_usage(trio.folder)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    line = refusal(trio, method)
    assert line.startswith(f"Error: output folder {trio.folder / 'out'}: the merged weights take")
    assert "and 0.0 MB are free. Make room, choose another folder" in line


@BOTH
def test_a_folder_without_permission(trio: Trio, method, monkeypatch):
    # The superuser may write everywhere, so the system's answer is a stand-in here.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert refusal(trio, method) == (
        f"Error: output folder {trio.folder / 'out'}: {trio.folder} is not a folder that can be "
        "written to. Choose another one."
    )


@BOTH
@pytest.mark.parametrize("name", ["base", "tool"])
def test_an_output_folder_that_is_an_input(trio: Trio, method, name):
    before = (trio.folder / name / "model.safetensors").read_bytes()
    result = run_yaml(trio.config(method), trio.folder / name, "--no-copy-tokenizer")
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == (
        f"Error: output folder {trio.folder / name}: it is also the folder of a model that is "
        "merged, and would be overwritten while it is read. Choose another one."
    )
    assert (trio.folder / name / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("dtypes", [{}, {"dtype": "float32"}, {"out_dtype": "float64"}])
def test_the_size_of_the_output_is_known_before(trio: Trio, monkeypatch, dtypes):
    from mergekit_ram.plan import folder

    seen = []
    monkeypatch.setattr(folder, "check_output", lambda path, size, inputs: seen.append(size))
    written = trio.merge("ram_plus", **dtypes)
    assert seen == [sum(tensor.numel() * tensor.itemsize for tensor in written.values())]


INTERRUPTED = """
import os, resource, signal, sys
from click.testing import CliRunner
from mergekit.io.tasks import SaveTensor
from mergekit.scripts.run_yaml import main

recipe, out, how = sys.argv[1:]
if how == "disk full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
else:
    saves, save = [], SaveTensor.execute
    def counted(self, **arguments):
        saves.append(self)
        if len(saves) == int(how):
            os.kill(os.getpid(), signal.SIGKILL)
        return save(self, **arguments)
    SaveTensor.execute = counted
main([recipe, out, "--no-copy-tokenizer", "--out-shard-size", "30K"])
"""


@BOTH
@pytest.mark.parametrize("how", ["disk full", "1", "13", "26"])
def test_interrupted_at_any_moment_nothing_loads(trio: Trio, method, how):
    recipe, out = trio.folder / "recipe.yml", trio.folder / "out"
    recipe.write_text(yaml.safe_dump(trio.config(method)))
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(recipe), str(out), how],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert result.returncode == (1 if how == "disk full" else -signal.SIGKILL), result.stderr
    if how == "disk full":
        (line,) = (line for line in result.stderr.splitlines() if line.startswith("Error"))
        assert line.startswith(f"Error: output folder {out}: writing failed: ")
        assert line.endswith("what was written so far is no complete model and does not load.")
        assert "Traceback" not in result.stderr
    assert not (out / "config.json").exists()
    assert not (out / "model.safetensors.index.json").exists()
    assert_not_loadable(out)


REPLACED = """
import os, signal, sys
from click.testing import CliRunner
from mergekit.scripts.run_yaml import main

recipe, out, renames = sys.argv[1:]
rename, done = os.rename, []
def counted(old, new):
    done.append(old)
    if len(done) == int(renames):
        os.kill(os.getpid(), signal.SIGKILL)
    rename(old, new)
os.rename = counted
main([recipe, out, "--no-copy-tokenizer", "--out-shard-size", "30K"])
"""


@BOTH
@pytest.mark.parametrize("renames", ["1", "2"])
def test_an_interrupted_merge_leaves_no_mixture_with_an_earlier_one(trio: Trio, method, renames):
    out = trio.folder / "out"
    succeed(run_yaml(trio.config("ram"), out, "--no-copy-tokenizer", "--out-shard-size", "30K"))
    recipe = trio.folder / "recipe.yml"
    recipe.write_text(yaml.safe_dump(trio.config(method, parameters={"scale": 0.5})))
    result = subprocess.run(
        [sys.executable, "-c", REPLACED, str(recipe), str(out), renames],
        capture_output=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert result.returncode == -signal.SIGKILL
    assert_not_loadable(out)


@BOTH
def test_a_merge_replaces_an_earlier_one_of_other_shards(trio: Trio, method, caplog):
    out = trio.folder / "out"
    options = ["--no-copy-tokenizer", "--out-shard-size", "30K"]
    succeed(run_yaml(trio.config("ram", parameters={"scale": 0.5}), out, *options))
    assert len(list(out.glob("*.safetensors"))) > 1
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        succeed(run_yaml(trio.config(method), out, "--no-copy-tokenizer"))
    (message,) = [r.message for r in caplog.records]
    assert message.startswith(f"output folder {out}: replacing the model in it (config.json, ")
    assert [file.name for file in out.glob("*.safetensors*")] == ["model.safetensors"]
    fresh = trio.merge(method)
    assert all(torch.equal(read_weights(out)[name], fresh[name]) for name in fresh)


@BOTH
def test_other_entries_of_a_pickled_checkpoint_are_no_matter(trio: Trio, method):
    plain = trio.merge(method)
    weights = read_weights(agent(trio))
    (agent(trio) / "model.safetensors").unlink()
    torch.save({**weights, "epoch": 3}, agent(trio) / "pytorch_model.bin")
    again = trio.merge(method)
    assert all(torch.equal(again[name], plain[name]) for name in plain)


def test_a_program_that_calls_run_merge_gets_the_checks_too(trio: Trio):
    (agent(trio) / "model.safetensors").write_bytes(b"")
    code = """
import sys, yaml
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.options import MergeOptions

config = MergeConfiguration.model_validate(yaml.safe_load(open(sys.argv[1])))
try:
    run_merge(config, sys.argv[2], MergeOptions())
except Exception as error:
    print(type(error).__name__, error)
"""
    recipe = trio.folder / "recipe.yml"
    recipe.write_text(yaml.safe_dump(trio.config("ram")))
    command = [sys.executable, "-c", code, str(recipe), str(trio.folder / "out")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.startswith(f"InputError model {agent(trio)}: cannot read")


@BOTH
def test_a_shared_parameter_under_a_model_is_warned_of(trio: Trio, method, caplog):
    models = trio.config(method)["models"]
    models[0]["parameters"] = {"epsilon": 0.1, "weight": 1.0}
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        trio.merge(method, models=models)
    assert [r.message for r in caplog.records] == [
        "parameter 'epsilon' has no effect under a model: it is one of the whole merge; write it "
        "under `parameters:` at the top, of a module, or of a slice"
    ]


@BOTH
def test_an_unknown_parameter_is_warned_of_with_the_nearest_name(trio: Trio, method, caplog):
    models = trio.config(method)["models"]
    models[0]["parameters"] = {"wieght": 1.0}
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        trio.merge(method, models=models, parameters={"epsilom": 1, "density": 0.5})
    warnings = [r.message for r in caplog.records if "has no effect" in r.message]
    known = "epsilon, scale, weight, overlap_power"
    known += ", r, alpha, rescale, statistics" if method == "ram_plus" else ""
    assert sorted(warnings) == [
        f"parameter 'density' has no effect: {method} does not know it; it knows {known}.",
        f"parameter 'epsilom' has no effect: {method} does not know it; did you mean 'epsilon'?",
        f"parameter 'wieght' has no effect: {method} does not know it; did you mean 'weight'?",
    ]


@BOTH
def test_rounding_the_inputs_is_warned_of(tmp_path, method, caplog):
    trio = Trio(tmp_path, dtype=torch.float32)
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        trio.merge(method, dtype="bfloat16")
    warnings = [r.message for r in caplog.records if "rounded" in r.message]
    assert len(warnings) == 4
    assert warnings[0] == (
        f"model {next(iter(trio.agents))}: stored in torch.float32 and rounded to torch.bfloat16 "
        "by `dtype:` before it is subtracted from the base, so that small updates vanish; use "
        "`out_dtype:` to round the result instead"
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        trio.merge(method, out_dtype="bfloat16")
    assert not [r.message for r in caplog.records if "rounded" in r.message]


@BOTH
def test_an_agent_that_is_the_base_is_warned_of(trio: Trio, method, caplog):
    write_weights(agent(trio), trio.base, trio.folder / "base")
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        trio.merge(method)
    (message,) = [r.message for r in caplog.records if str(agent(trio)) in r.message]
    assert message == (
        f"agent {agent(trio)} equals the base within epsilon everywhere and contributes nothing"
    )


@BOTH
def test_an_agent_of_another_base_is_warned_of_with_its_density(trio: Trio, method, caplog):
    stranger = make_agent(agent(trio), trio.folder / "base", 1.0, seed=9)
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        trio.merge(method)
    counts = reference.count(trio.base, {"stranger": stranger})
    density = 100 * counts.overlap_degree["stranger"][0] / counts.parameters
    (message,) = [r.message for r in caplog.records if str(agent(trio)) in r.message]
    assert 95 < density < 100
    assert message == (
        f"agent {agent(trio)} differs from the base in {density:.1f} % of all parameters: it was "
        "not trained from this base, or not by sparse updates"
    )


@BOTH
def test_usual_agents_are_not_warned_of(trio: Trio, method, caplog):
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        trio.merge(method)
    assert not caplog.records


def test_raw_checkpoints_are_checked_too(tmp_path):
    from mergekit.scripts.merge_raw_pytorch import main

    save_file({"w": torch.zeros(3)}, tmp_path / "base.safetensors")
    save_file({"w": torch.ones(4)}, tmp_path / "agent.safetensors")
    base, other = str(tmp_path / "base.safetensors"), str(tmp_path / "agent.safetensors")
    recipe = tmp_path / "raw.yml"
    recipe.write_text(
        yaml.safe_dump({"merge_method": "ram", "base_model": base, "models": [{"model": other}]})
    )
    result = CliRunner().invoke(main, [str(recipe), str(tmp_path / "out")])
    assert result.exit_code == 1
    assert (
        f"Error: model {other}, tensor w: shape [4], but the base {base} has [3]" in result.output
    )
    assert not (tmp_path / "out").exists()


def test_other_methods_are_left_alone(trio: Trio, caplog):
    config = trio.config("ties", parameters={"weight": 1.0, "epsilom": 1})
    with caplog.at_level(logging.WARNING, logger="mergekit_ram"):
        succeed(run_yaml(config, trio.folder / "out", "--no-copy-tokenizer"))
    assert not caplog.records
    (agent(trio) / "model.safetensors").write_bytes(b"")
    result = run_yaml(config, trio.folder / "out", "--no-copy-tokenizer")
    assert type(result.exception).__name__ == "SafetensorError"
