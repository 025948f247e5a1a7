"""The ridge that an inspection of ``ram_directions`` takes: that of the merge."""

from __future__ import annotations

from typing import Any

import pytest
from inspecting import inspected, run_inspect
from models import Trio, merge_yaml
from records import record_of

from mergekit_ram.record.schema import OverlapRecord

OFTEN = [{"filter": "norm", "value": "2"}, {"value": "1e-3"}]


def looked_at(trio: Trio, ridge: Any, *options: str) -> OverlapRecord:
    parameters = {} if ridge is None else {"ridge": ridge}
    config = trio.config("ram_directions", parameters=parameters)
    return inspected(config, trio.folder, "--no-realised", *options)


def kept(record: OverlapRecord) -> list[float | None]:
    return [agent.retained_directions for agent in record.agents]


def test_a_ridge_is_read_as_mergekit_reads_it(trio: Trio):
    plain = looked_at(trio, 0.001)
    assert plain.settings.ridge == 0.001
    assert kept(plain) != kept(looked_at(trio, None))
    for written in ("1e-3", "0.001", [0.001, 0.001], [{"value": "1e-3"}]):
        record = looked_at(trio, written)
        assert record.settings.ridge == 0.001
        assert kept(record) == kept(plain)
        assert record.findings == plain.findings


def test_a_ridge_of_a_slice_is_that_of_its_merge(trio: Trio):
    sources = [{"model": model, "layer_range": [0, 2]} for model in (trio.base_path, *trio.agents)]
    config = {
        "merge_method": "ram_directions",
        "base_model": trio.base_path,
        "slices": [{"sources": sources, "parameters": {"ridge": "1e-3"}}],
        "parameters": {"ridge": 0.001},
    }
    record = inspected(config, trio.folder, "--no-realised")
    assert record.settings.ridge == 0.001
    assert kept(record) == kept(looked_at(trio, 0.001))


def test_without_a_ridge_the_default_is_recorded(trio: Trio):
    assert looked_at(trio, None).settings.ridge == 0.3
    assert looked_at(trio, 0.5, "--no-directions").settings.ridge == 0.5
    assert looked_at(trio, 0.5, "--sample", "0.5").settings.ridge == 0.5


def test_a_merge_of_another_method_has_no_ridge(trio: Trio):
    record = inspected(trio.config("ram_plus"), trio.folder, "--no-realised")
    assert record.settings.ridge is None
    assert kept(record) == kept(looked_at(trio, 0.3))


def test_the_recorded_ridge_is_that_of_the_merge(trio: Trio):
    config = trio.config("ram_directions", parameters={"ridge": OFTEN})
    merge_yaml(config, trio.folder / "merged")
    assert record_of(trio.folder / "merged").settings.ridge == looked_at(trio, OFTEN).settings.ridge


@pytest.mark.parametrize("ridge", ["no", -1, "0"])
def test_what_is_no_ridge_is_refused(trio: Trio, ridge):
    config = trio.config("ram_directions", parameters={"ridge": ridge})
    result = run_inspect(config, trio.folder, "--quiet")
    assert result.exit_code == 1
    assert "parameter 'ridge' must be a finite number > 0" in result.output.splitlines()[-1]
