"""The page as it is written, without a browser."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from pages import RECORDS

from mergekit_ram.errors import InputError, MissingExtraError
from mergekit_ram.show.page import render_page, write_page


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
    assert page.count("plotly.js v") == 1
    assert "default-src 'none'" in page
    assert re.findall(r'(?:src|href)="(?!data:)', page.partition("<script>")[0]) == []


def test_a_page_that_cannot_be_written_is_named(tmp_path):
    path = tmp_path / "missing" / "page.html"
    with pytest.raises(InputError, match=re.escape(str(path))):
        write_page(RECORDS["merge"], path)


def test_without_plotly_one_line_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingExtraError) as caught:
        write_page(RECORDS["merge"], tmp_path / "page.html")
    assert "pip install 'mergekit-ram[html]'" in caught.value.message
    assert "\n" not in caught.value.message
    assert not (tmp_path / "page.html").exists()


def test_only_a_page_loads_plotly():
    code = "import sys, mergekit_ram, mergekit_ram.show.page; sys.exit('plotly' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
