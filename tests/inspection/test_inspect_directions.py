"""What ``ram_directions`` keeps, ranks and shared directions, as an inspection shows them."""

from __future__ import annotations

import directions_reference as reference
import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from mergekit.config import MergeConfiguration
from models import Trio, forget_loaded_models

from mergekit_ram.cli import main
from mergekit_ram.inspection.inspect import inspect
from mergekit_ram.record.schema import OverlapRecord


def inspected(trio: Trio, method: str = "ram_plus", **arguments) -> OverlapRecord:
    forget_loaded_models()
    changes = arguments.pop("changes", {})
    config = MergeConfiguration.model_validate(trio.config(method, **changes))
    return inspect(config, realised=False, **arguments)


def updates(trio: Trio, name: str) -> list[np.ndarray]:
    base = trio.base[name].double().numpy()
    found = [weights[name].double().numpy() - base for weights in trio.agents.values()]
    return [np.where(np.abs(τ) > 1e-5, τ, 0) for τ in found]


def kept(trio: Trio, **settings) -> list[float]:
    return kept_by(trio, reference.merge(trio.base, trio.agents, **settings))


def kept_by(trio: Trio, merged) -> list[float]:
    products, energies = np.zeros(3), np.zeros(3)
    for name, tensor in merged.items():
        change = tensor.numpy() - trio.base[name].double().numpy()
        for t, τ in enumerate(updates(trio, name)):
            products[t] += (change * τ).sum()
            energies[t] += (τ**2).sum()
    return list(products / energies)


def test_what_is_kept_is_that_of_the_formula(trio: Trio):
    record = inspected(trio)
    found = [agent.retained_directions for agent in record.agents]
    assert found == pytest.approx(kept(trio), rel=1e-4)
    assert [agent.retained for agent in record.agents] == [
        agent.retained_ram_plus for agent in record.agents
    ]


def test_the_configured_merge_is_looked_at_with_its_ridge_and_scale(trio: Trio):
    settings = {"ridge": 2.0, "scale": 0.5}
    record = inspected(trio, "ram_directions", changes={"parameters": settings})
    found = [agent.retained_directions for agent in record.agents]
    assert found == pytest.approx(kept(trio, **settings), rel=1e-4)
    assert [agent.retained for agent in record.agents] == found


def test_a_ridge_by_tensor_is_taken_in_its_tensors(trio: Trio):
    by_tensor = [{"filter": "mlp", "value": 2.0}, {"value": 0.001}]
    record = inspected(trio, "ram_directions", changes={"parameters": {"ridge": by_tensor}})
    firm, loose = (reference.merge(trio.base, trio.agents, ridge=ridge) for ridge in (2.0, 0.001))
    merged = {name: (firm if "mlp" in name else loose)[name] for name in trio.base}
    found = [agent.retained_directions for agent in record.agents]
    assert found == pytest.approx(kept_by(trio, merged), rel=1e-4)
    assert record.settings.ridge == (0.001, 2.0)


def test_ranks_and_cosines_are_means_over_the_matrices(trio: Trio):
    record = inspected(trio)
    ranks, cosines, size = np.zeros(3), np.zeros((3, 3)), 0
    for name, tensor in trio.base.items():
        if tensor.ndim < 2:
            continue
        grams = [τ.T @ τ / (τ**2).sum() for τ in updates(trio, name)]
        lengths = [np.linalg.norm(gram) for gram in grams]
        size += tensor.numel()
        for a in range(3):
            ranks[a] += tensor.numel() / lengths[a] ** 2 / tensor.shape[1]
            for b in range(3):
                cosine = (grams[a] * grams[b]).sum() / (lengths[a] * lengths[b])
                cosines[a, b] += tensor.numel() * cosine
    found = [agent.effective_rank for agent in record.agents]
    assert found == pytest.approx(list(ranks / size), rel=1e-4)
    names = [agent.model for agent in record.agents]
    for pair in record.pairwise:
        expected = cosines[names.index(pair.first), names.index(pair.second)] / size
        assert pair.gram_cosine == pytest.approx(expected, rel=1e-4)


def test_an_agent_alone_is_kept_whole_and_has_a_rank(trio: Trio):
    record = inspected(trio, changes={"models": trio.config("ram")["models"][:1]})
    (agent,) = record.agents
    assert agent.retained_directions == pytest.approx(1.0, rel=1e-5)
    assert 0 < agent.effective_rank < 1


@pytest.mark.parametrize("arguments", [{"directions": False}, {"sample": 0.5}])
def test_nothing_is_computed_where_not_wanted_or_rows_are_lacking(trio: Trio, arguments):
    record = inspected(trio, **arguments)
    for agent in record.agents:
        assert agent.retained_directions is None
        assert agent.effective_rank is None
    assert all(pair.gram_cosine is None for pair in record.pairwise)


def test_the_command_shows_them_unless_told_not_to(trio: Trio, tmp_path):
    recipe = tmp_path / "merge.yml"
    recipe.write_text(yaml.safe_dump(trio.config("ram_plus")))
    shown = CliRunner().invoke(main, ["inspect", str(recipe), "--quiet"]).output
    assert "by ram_directions" in shown
    assert "Gram cosine" in shown
    assert "  rank" in shown
    forget_loaded_models()
    short = CliRunner().invoke(main, ["inspect", str(recipe), "--quiet", "--no-directions"]).output
    assert "by ram_directions" not in short
    assert "Which directions of the input they use" not in short


def test_of_large_models_they_are_left_out_unless_asked_for(trio: Trio, monkeypatch, caplog):
    monkeypatch.setattr("mergekit_ram.inspection.inspect.SMALL", 0)
    assert inspected(trio).agents[0].retained_directions is None
    (line,) = [r.message for r in caplog.records if "ram_directions" in r.message]
    assert line == (
        "what ram_directions would keep is left out: it takes as long as that merge; "
        "--directions (in Python directions=True) asks for it"
    )
    caplog.clear()
    assert inspected(trio, directions=True).agents[0].retained_directions is not None
    assert inspected(trio, "ram_directions").agents[0].retained_directions is not None
    assert not caplog.records


def test_the_page_draws_them(trio: Trio):
    from mergekit_ram.show.page import panels

    section = panels(inspected(trio))["Where two agents meet"]
    assert [panel.name for panel in section] == ["pairs", "directions"]
