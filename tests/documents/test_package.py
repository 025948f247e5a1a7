"""What the package says of itself, and what an index would show of it."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest
import yaml
from document_blocks import ROOT, document

import mergekit_ram

PLACE = "https://example.org/somebody/mergekit-ram"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def targets(text: str) -> set[str]:
    return set(re.findall(r"\]\(([^)]+)\)", text))


def test_with_an_address_every_link_and_image_of_the_readme_is_whole(hook):
    shown = hook.with_whole_links(document("README.md"), PLACE)
    assert all(re.match("https://|#", target) for target in targets(shown))
    assert f"]({PLACE}/raw/main/docs/overlap.png)" in shown
    assert f"]({PLACE}/blob/main/docs/methods.md#the-paper)" in shown
    assert hook.urls(PLACE)["Issues"] == f"{PLACE}/issues"


def test_without_an_address_no_link_of_the_readme_leads_nowhere(hook):
    shown = hook.with_whole_links(document("README.md"), "")
    assert all(re.match("https://|#", target) for target in targets(shown))
    assert "docs/methods.md" in shown
    assert hook.urls("").keys() == {"Paper"}


def test_the_version_is_the_same_everywhere():
    cited = yaml.safe_load(document("CITATION.cff"))
    assert cited["version"] == mergekit_ram.__version__
    assert "arXiv:2601.13572" in str(cited)


def test_the_changelog_begins_with_what_is_unreleased():
    headings = re.findall(r"^## (.*)$", document("CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"


def test_every_issue_template_asks_for_the_status():
    templates = [
        path
        for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")
        if path.stem != "config"
    ]
    assert len(templates) == 2
    for path in templates:
        fields = [field.get("attributes", {}) for field in yaml.safe_load(path.read_text())["body"]]
        assert any("`mergekit-ram status`" in field["label"] for field in fields), path


def test_the_workflow_runs_what_is_run_here():
    workflow = yaml.safe_load(document(".github/workflows/ci.yml"))
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1]["run"] == "bash .ci/run"
    oldest, newest = job["strategy"]["matrix"]["python"]
    assert f'requires-python = ">={oldest}"' in document("pyproject.toml")
    assert [int(part) for part in newest.split(".")] > [int(part) for part in oldest.split(".")]
