"""``mergekit_ram.inspect``, ``read_record`` and ``write_page`` as a program calls them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from mergekit.config import MergeConfiguration
from models import Trio, merge_yaml

from mergekit_ram import OverlapRecord, inspect, read_record, write_page
from mergekit_ram.errors import InputError, ParameterError
from mergekit_ram.inspection.sample import Sample


@pytest.fixture
def recipe(trio: Trio, tmp_path: Path) -> Path:
    file = tmp_path / "x.yml"
    file.write_text(yaml.safe_dump(trio.config("ram_plus")))
    return file


def figures(record: OverlapRecord) -> dict[str, object]:
    return record.model_dump(exclude={"seconds"})


def test_files_by_path_and_text_and_configurations_are_one(recipe: Path):
    config = MergeConfiguration.model_validate(yaml.safe_load(recipe.read_text()))
    expected = figures(inspect(config))
    assert figures(inspect(recipe)) == expected
    assert figures(inspect(str(recipe))) == expected


def test_a_share_is_a_sample(recipe: Path):
    expected = figures(inspect(recipe, sample=Sample(0.5)))
    assert expected["sample"]
    assert figures(inspect(recipe, sample=0.5)) == expected
    assert figures(inspect(recipe, sample=np.float64(0.5))) == expected


@pytest.mark.parametrize("share", [0, 1, 1.5, -0.1, float("nan"), True, "0.1"])
def test_what_is_no_share_is_refused(recipe: Path, share):
    with pytest.raises(ParameterError, match="above 0 and below 1; got "):
        inspect(recipe, sample=share)


def test_thresholds_are_one_number_or_several_and_the_merges_own(recipe: Path):
    for epsilons in (1e-3, [1e-3], (1e-3, 1e-3, 1e-5), {1e-3}, np.array([1e-3])):
        record = inspect(recipe, epsilons=epsilons, realised=False)
        assert [threshold.epsilon for threshold in record.thresholds] == [1e-5, 1e-3]
        own = record.thresholds[0]
        assert [agent.active for agent in own.agents] == [agent.active for agent in record.agents]
    assert inspect(recipe, realised=False).thresholds is None


@pytest.mark.parametrize("epsilons", [-1, [1e-3, -1e-3], float("inf"), [float("nan")], "1", [True]])
def test_what_is_no_threshold_is_refused(recipe: Path, epsilons):
    with pytest.raises(ParameterError, match="epsilons must be finite numbers ≥ 0; got "):
        inspect(recipe, epsilons=epsilons)


def test_thresholds_of_filtered_tensors_are_all_listed(trio: Trio, tmp_path: Path):
    file = tmp_path / "filtered.yml"
    epsilon = [{"filter": "mlp", "value": 1e-4}, {"value": 1e-5}]
    file.write_text(yaml.safe_dump(trio.config("ram", parameters={"epsilon": epsilon})))
    record = inspect(file, epsilons=1e-3, realised=False)
    assert [threshold.epsilon for threshold in record.thresholds] == [1e-5, 1e-4, 1e-3]


def test_a_record_is_read_from_its_folder_or_file_by_path_and_text(trio: Trio, tmp_path: Path):
    merged = tmp_path / "merged"
    merge_yaml(trio.config("ram_plus"), merged)
    expected = read_record(merged / "ram_overlap.json")
    assert expected.kind == "merge"
    for source in (merged, str(merged), str(merged / "ram_overlap.json")):
        assert read_record(source) == expected
        assert inspect(source) == expected
    with pytest.raises(InputError, match="is a record: epsilons and sample are of models"):
        inspect(merged, sample=0.1)


def test_a_folder_without_a_record_is_refused(tmp_path: Path):
    for source in (tmp_path, str(tmp_path)):
        with pytest.raises(InputError, match=r"is a folder without ram_overlap\.json"):
            read_record(source)
    with pytest.raises(InputError, match="cannot be read as a configuration of mergekit"):
        inspect(tmp_path / "missing.yml")


def test_a_page_is_written_by_path_and_text(recipe: Path, tmp_path: Path):
    record = inspect(recipe)
    for page in (tmp_path / "page.html", str(tmp_path / "text.html")):
        write_page(record, page)
        assert "<html" in Path(page).read_text(encoding="utf-8")
