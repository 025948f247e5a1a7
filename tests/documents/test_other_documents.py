"""What docs/methods.md, python.md and compatibility.md say of the code holds."""

from __future__ import annotations

import re

from document_blocks import ROOT, blocks, document, printed_by

from mergekit_ram import RamPlusMerge


def test_the_parameter_table_is_that_of_the_methods():
    rows = re.findall(
        r"^\| `(\w+)`( \(per model\))? \| ([^|]+) \| (\S+) \|",
        document("docs/methods.md"),
        re.MULTILINE,
    )
    shown = {name: (bool(per_model), default) for name, per_model, _, default in rows}
    specs = {p.name: p for p in RamPlusMerge.spec.parameters}
    assert shown.keys() == specs.keys()
    for name, (per_model, default) in shown.items():
        assert per_model == (specs[name].scope.value == "non_base")
        if default in ("computed", "none"):
            assert specs[name].default is None
        else:
            assert float(default) == specs[name].default


def test_the_python_example_prints_what_its_comment_says():
    code = blocks(document("docs/python.md"), "python")[0]
    assert printed_by(code).strip() == code.strip().splitlines()[-1].split("#")[1].strip()


def test_every_test_that_a_document_names_exists():
    named = set()
    for path in ROOT.glob("docs/*.md"):
        named |= set(re.findall(r"`(test_\w+)`", path.read_text(encoding="utf-8")))
    assert len(named) > 20
    defined = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        defined |= set(re.findall(r"^def (test_\w+)\(", file.read_text(), re.MULTILINE))
    assert named <= defined, named - defined
