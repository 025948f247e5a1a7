"""Which method an overlap speaks for, of 2 to 20 agents, and where that cannot be told."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from inspecting import inspected, run_inspect
from models import Trio, merge_yaml, write_weights
from page_records import inspection
from records import record_of, unfolded

from mergekit_ram import inspect
from mergekit_ram.overlap import SUSPICIOUS_DENSITY
from mergekit_ram.record import verdict as rule
from mergekit_ram.record.findings import OPPOSED, findings_of
from mergekit_ram.record.schema import AgentRecord, OverlapRecord, PairRecord, Verdict
from mergekit_ram.record.verdict import ADVICE, verdict_of
from mergekit_ram.show.page import render_page

ROOT = Path(__file__).parents[2]
SIZE = 20_000
COUNTS = (2, 3, 8, 20)

Masks = npt.NDArray[np.bool_]


def record_of_masks(masks: Masks, cosine: float | None = 0.0, **fields: Any) -> OverlapRecord:
    """An inspection of agents that changed these weights; without a cosine, a merge."""
    others = masks.sum(0) - 1
    agents = tuple(
        AgentRecord(
            model=f"agent{number}",
            overlap_degree=tuple(np.bincount(others[own], minlength=len(masks)).tolist()),
            parameters=masks.shape[1],
            weight=1.0,
            rescale=1.1,
            clipped=False,
        )
        for number, own in enumerate(masks)
    )
    names = combinations([agent.model for agent in agents], 2)
    rest = {"both": 0, "jaccard": 0.0, "sign_conflicts": 0.5, "cosine": cosine}
    pairs = tuple(PairRecord(first=first, second=second, **rest) for first, second in names)
    changes = {"agents": agents, "pairwise": None if cosine is None else pairs, **fields}
    return inspection().model_copy(update=changes)


def verdict(masks: Masks, cosine: float | None = 0.0) -> Verdict:
    return verdict_of(record_of_masks(masks, cosine))


def drawn(count: int, density: float, common: float = 0.0) -> Masks:
    """Masks of one density; this share of each is the same in all."""
    generator = np.random.default_rng(count)
    core = generator.random(SIZE) < density * common
    rest = density * (1 - common) / (1 - density * common)
    return core | (generator.random((count, SIZE)) < rest)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("density", [0.02, 0.1, 0.3, 0.7])
def test_random_weights_are_as_different_as_chance_allows(count, density):
    found = verdict(drawn(count, density))
    by_chance = (1 - density) ** (count - 1)
    assert found.unique_by_chance == pytest.approx(by_chance, abs=0.02)
    assert found.unique_share == pytest.approx(by_chance, abs=0.02)
    assert found.take == ("ram_plus" if by_chance > rule.MUCH_UNIQUE else "ram_directions")
    assert "The agents chose the same weights" not in found.lines[1]


@pytest.mark.parametrize("count", COUNTS)
def test_further_agents_alone_do_not_make_it_another_verdict(count):
    assert verdict(drawn(count, 0.05)).code == "own-weights"


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("common", "code"), [(0.2, "own-weights"), (0.8, "some-own-weights"), (0.99, "same-weights")]
)
def test_what_all_chose_decides(count, common, code):
    found = verdict(drawn(count, 0.02, common))
    assert found.code == code
    assert ("The agents chose the same weights" in found.lines[1]) == (code != "own-weights")
    assert (found.take, found.compare_with) == ADVICE[code]


def test_one_agent_that_would_be_diluted_speaks_against_ram():
    masks = drawn(3, 0.2)
    masks[2] = masks[0] & (np.arange(SIZE) % 9 == 0)
    found = verdict(masks)
    assert found.unique_share > rule.MUCH_UNIQUE
    assert found.code == "some-own-weights"
    assert found.lines[1].startswith("Others changed nearly all weights that agent2 changed, and")


@pytest.mark.parametrize("count", COUNTS)
def test_dense_agents_get_a_verdict_where_their_directions_are_known(count):
    masks = drawn(count, 0.99)
    assert verdict(masks).code == "same-weights"
    assert verdict(masks, 0.95).code == "wrong-base"
    assert verdict(masks, None).code == "dense-agents"


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("cosine", [None, 0.6])
def test_an_exchanged_base_is_seen_in_its_overlap(count, cosine):
    masks = drawn(count, 0.3)
    # The true base differs from an agent in that agent's weights, and so do all others.
    masks[1:] |= masks[0]
    found = verdict(masks, cosine)
    assert found.code == "exchanged-base"
    assert "All that agent0 changed" in found.lines[0]
    assert found.take is None
    # A part of all others' weights, changed in another way, is no exchange.
    assert verdict(masks, 0.0).code != "exchanged-base"


def test_of_fewer_than_two_agents_nothing_is_told():
    masks = drawn(2, 0.3)
    masks[1] = False
    assert verdict(masks).code == "one-agent"
    assert verdict(masks[:1]).code == "one-agent"
    assert verdict(np.zeros((3, SIZE), bool)).code == "nothing-changed"
    record = record_of_masks(drawn(2, 0.3))
    idle = record.agents[0].model_copy(update={"weight": 0.0})
    left = record.model_copy(update={"agents": (idle, record.agents[1])})
    assert verdict_of(left).code == "one-agent"


def test_the_rule_is_the_one_in_the_documents():
    text = (ROOT / "docs" / "methods.md").read_text()
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines()]
    found = {row[0].strip("`"): row[1:] for row in rows if len(row) == 4}
    for code, advice in ADVICE.items():
        assert tuple(cell.strip("`") for cell in found[code][1:]) == advice
    limits = {code: re.findall(r"[\d.]+", row[0]) for code, row in found.items()}
    percent = [f"{100 * share:g}" for share in (rule.MUCH_UNIQUE, rule.LITTLE_UNIQUE)]
    assert limits["own-weights"] == [percent[0], f"{rule.OF_CHANCE:g}", percent[1]]
    assert limits["some-own-weights"] == limits["same-weights"] == percent[1:]
    assert limits["wrong-base"] == [f"{rule.SAME_WAY:g}"]
    assert limits["exchanged-base"] == [
        f"{100 * rule.MOSTLY:g}",
        f"{100 * rule.PARTLY:g}",
        f"{rule.TOWARDS_EACH_OTHER:g}",
    ]
    assert limits["dense-agents"] == [f"{100 * SUSPICIOUS_DENSITY:g}"]
    assert f"a cosine below {OPPOSED:g} undo" in text


def test_agents_that_undo_each_other_are_named():
    codes = {finding.code for finding in findings_of(record_of_masks(drawn(3, 0.2), -0.05))}
    assert "opposed-agents" not in codes
    found = findings_of(record_of_masks(drawn(8, 0.2), -0.49))
    (text,) = [finding.text for finding in found if finding.code == "opposed-agents"]
    assert "agent0 and agent1 (-0.49), agent0 and agent2 (-0.49)" in text
    assert "and 25 more" in text


def test_the_shipped_agents_have_weights_of_their_own():
    record = inspect(ROOT / "examples/yaml/ram_plus.yml", sample=0.2)
    assert record.verdict is not None
    assert record.verdict.code == "own-weights"


def test_a_wrong_base_and_an_exchanged_one_get_no_advice(trio: Trio, tmp_path):
    base = Path(trio.base_path)
    torch.manual_seed(7)
    other = {name: torch.randn_like(tensor) * 0.02 for name, tensor in trio.base.items()}
    write_weights(tmp_path / "other", other, base)
    config = trio.config("ram_plus", base_model=str(tmp_path / "other"))
    quick = ("--no-directions", "--no-realised")
    assert inspected(config, tmp_path, *quick).verdict.code == "wrong-base"
    coder, *others = trio.agents
    models = [{"model": model} for model in (trio.base_path, *others)]
    config = trio.config("ram_plus", base_model=coder, models=models)
    found = inspected(config, tmp_path, *quick).verdict
    assert (found.code, found.take) == ("exchanged-base", None)
    file = tmp_path / "new.yml"
    result = run_inspect(config, tmp_path, "--quiet", *quick, "--write-recipe", str(file))
    assert result.exit_code == 1
    assert result.output.splitlines()[-1].startswith("Error: no recipe is written: ")
    assert not file.exists()


def test_the_verdict_is_the_first_thing_that_is_shown(trio: Trio, tmp_path):
    merge_yaml(trio.config("ram"), tmp_path / "merged")
    record = record_of(tmp_path / "merged")
    assert record.verdict is not None
    said = record.verdict.lines[1]
    assert record.verdict.lines[-1] == "This merge is by ram."
    shown = unfolded(run_inspect(tmp_path / "merged", tmp_path).output)
    assert shown.index(said) < shown.index("What each agent changed")
    page = render_page(record)
    assert 0 < page.index('<section id="verdict">') < page.index('<section id="findings">')
    assert said in (tmp_path / "merged" / "README.md").read_text()


def test_a_recipe_of_the_verdict_merges_the_same_models(trio: Trio, tmp_path):
    file = tmp_path / "new.yml"
    options = ("--quiet", "--no-directions", "--no-realised", "--write-recipe", str(file))
    config = trio.config("ties", parameters={"weight": 0.3, "density": 0.5}, out_dtype="float32")
    config["models"][0]["parameters"] = {"weight": 0.1}
    assert run_inspect(config, tmp_path, *options).exit_code == 0
    merged = merge_yaml(file.read_text(), tmp_path / "out")
    expected = merge_yaml(trio.config("ram_plus", out_dtype="float32"), tmp_path / "expected")
    assert all((merged[name] == tensor).all() for name, tensor in expected.items())
    result = run_inspect(config, tmp_path, *options)
    assert result.exit_code == 1
    assert "new.yml is there already" in result.output
    result = run_inspect(tmp_path / "out", tmp_path, "--write-recipe", str(tmp_path / "again.yml"))
    assert result.exit_code == 2
    assert "--write-recipe" in result.output


def test_parameters_of_ours_stay_in_the_recipe_where_the_method_has_them(trio: Trio, tmp_path):
    file = tmp_path / "new.yml"
    config = trio.config("ram_directions", parameters={"ridge": 0.5, "epsilon": 1e-4})
    options = ("--quiet", "--no-directions", "--no-realised", "--write-recipe", str(file))
    assert run_inspect(config, tmp_path, *options).exit_code == 0
    text = file.read_text()
    assert "merge_method: ram_plus" in text
    assert "epsilon: 0.0001" in text
    assert "ridge" not in text
