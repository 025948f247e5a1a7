"""What ``mergekit-ram inspect`` finds in agents, and when it finds nothing."""

from __future__ import annotations

from pathlib import Path

import torch
from inspecting import inspected, run_inspect
from models import Trio, write_weights
from records import unfolded

from mergekit_ram.record.schema import OverlapRecord


def codes(record: OverlapRecord) -> set[str]:
    return {finding.code for finding in record.findings}


def test_usual_agents_give_no_findings_and_strict_is_content(trio: Trio, tmp_path):
    config = trio.config("ram_plus", out_dtype="float32", parameters={"alpha": 50})
    assert codes(inspected(config, tmp_path, "--strict")) == set()


def test_findings_are_said_where_they_are_true(trio: Trio, tmp_path):
    coder, tool, memory = (Path(path) for path in trio.agents)
    base = Path(trio.base_path)
    everything = {name: tensor + 1 for name, tensor in trio.base.items()}
    write_weights(coder, trio.base, base)
    write_weights(tool, everything, base)
    write_weights(memory, {n: t + 2 for n, t in trio.base.items()}, base)
    result = run_inspect(trio.config("ram_plus"), tmp_path, "--quiet", "--strict")
    assert result.exit_code == 3
    said = unfolded(result.output)
    assert f"{coder} equals the base within ε and contributes nothing" in said
    assert f"{tool} (100.0 %), {memory} (100.0 %) changed nearly all parameters" in said
    assert f"Of what {tool} (0 %), {memory} (0 %) changed, next to nothing" in said
    assert "Every agent's ρ is above α, so that all get the same λ" in said
    assert "changed by no agent" not in said


def test_untouched_tensors_and_a_lost_rescale_are_found(trio: Trio, tmp_path):
    base = Path(trio.base_path)
    last_places = {}
    for number, path in enumerate(map(Path, trio.agents)):
        weights = {}
        for name, tensor in trio.base.items():
            bits = tensor.view(torch.int16).clone()
            if "mlp" in name:
                # One unit in the last place of every third parameter: λ rounds away.
                bits.view(-1)[number::3] += 1
            weights[name] = bits.view(torch.bfloat16)
        last_places[path] = weights
        write_weights(path, weights, base)
    record = inspected(trio.config("ram_plus", parameters={"r": 0.1, "epsilon": 0}), tmp_path)
    assert codes(record) == {"untouched-tensors"}  # nothing is shared, λ is 1
    first = next(iter(last_places))
    for name, tensor in last_places[first].items():
        if "mlp" in name:
            tensor.view(torch.int16).view(-1)[1::6] += 1
    write_weights(first, last_places[first], base)
    record = inspected(trio.config("ram_plus", parameters={"r": 0.1, "epsilon": 0}), tmp_path)
    texts = {finding.code: finding.text for finding in record.findings}
    assert set(texts) == {"untouched-tensors", "rescale-lost"}
    assert "0 % of λ − 1 survives: 1." in texts["rescale-lost"]
    assert "`out_dtype: float32` keeps it" in texts["rescale-lost"]
    config = trio.config("ram_plus", out_dtype="float32", parameters={"epsilon": 0})
    assert "rescale-lost" not in codes(inspected(config, tmp_path))
