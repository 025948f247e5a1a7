"""The page as it is written, without a browser."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pages import EIGHT, RECORDS, plots

from mergekit_ram.errors import InputError
from mergekit_ram.names import labels
from mergekit_ram.record.schema import Finding
from mergekit_ram.show.page import render_page, write_page

ROOT = Path(__file__).parents[2]


def test_the_tables_hold_the_agents_numbers_without_javascript():
    record = RECORDS["inspection"]
    body = render_page(record).partition("<figure")[0]
    for agent in record.agents:
        for number in (agent.shared, agent.unique):
            assert f"<td>{number:,}</td>" in body
        assert f"<td>{agent.retained_ram:.3f}</td>" in body
    assert "<td>1.200</td><td>yes</td>" in body
    assert "α clips its λ." in body
    for fact in ("Qwen/Qwen2.5-7B-Instruct", "1e-05", "ram_plus", "mergekit 0.1.5", "bfloat16"):
        assert fact in body
    assert f"{record.parameters:,}" in body


def test_the_library_is_embedded_once_and_no_address_allowed():
    page = render_page(RECORDS["merge"])
    assert page.count("plotly.js (cartesian - minified) v") == 1
    assert "default-src 'none'" in page
    assert re.findall(r'(?:src|href)="(?!data:)', page.partition("<script>")[0]) == []


def test_a_page_that_cannot_be_written_is_named(tmp_path):
    path = tmp_path / "missing" / "page.html"
    with pytest.raises(InputError, match=re.escape(str(path))):
        write_page(RECORDS["merge"], path)


def test_a_page_is_below_a_megabyte_and_a_half(pages):
    assert max(path.stat().st_size for path in pages.values()) < 1_500_000


def test_code_in_a_finding_is_code_and_no_name_is_markup():
    finding = Finding(code="x", text="<b>agent</b> has `out_dtype: float32`.")
    page = render_page(RECORDS["merge"].model_copy(update={"findings": (finding,)}))
    said = "<li>&lt;b&gt;agent&lt;/b&gt; has <code>out_dtype: float32</code>.</li>"
    assert said in page


def test_whole_names_stand_once_and_short_ones_in_every_figure():
    page = render_page(RECORDS["eight"])
    name, short = EIGHT[1].model, labels([sketch.model for sketch in EIGHT])[1]
    assert f"<dt>agent {short}</dt><dd>{name}</dd>" in page
    for plot in plots(RECORDS["eight"]).values():
        for trace in plot["data"]:
            assert name not in (trace.get("name"), *trace["y"])


@pytest.mark.slow
def test_the_wheel_holds_what_a_page_is_made_of(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.iterdir()
    held = zipfile.ZipFile(wheel).namelist()
    for name in ("page.html.j2", "page.css", "page.js", "plotly-cartesian.min.js.gz"):
        assert f"mergekit_ram/show/{name}" in held
    assert any(name.endswith("plotly-cartesian.LICENSE") for name in held)
