"""What needs no model imports nothing that takes seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from models import Trio
from records import unfolded

from mergekit_ram.cli import main
from mergekit_ram.record.schema import RECORD_NAME

HEAVY = ("torch", "transformers", "mergekit", "numba", "numpy", "plotly")

RUN = """
import sys
from mergekit_ram.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
sys.exit(code)
"""


def ask(*arguments: str) -> tuple[str, set[str]]:
    """What the command prints, and the packages that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout, set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("--help",), "See what agents changed"),
        (("--version",), ", version "),
        (("schema",), '"schema_version"'),
        (("inspect", "--help"), "--lora-merge-cache"),
        (("merge", "--help"), "--out-shard-size"),
        (("merge", "-h"), "--workers"),
        (("status", "--help"), "whether the plugin is on"),
        (("status",), "--check tries the compiled loops"),
    ],
)
def test_help_version_and_schema_import_nothing_heavy(arguments, printed):
    text, imported = ask(*arguments)
    assert printed in text
    assert imported.isdisjoint(HEAVY)
    assert "mergekit_ram" in imported


def test_a_record_is_shown_without_what_only_models_need(trio: Trio, tmp_path):
    trio.merge("ram")
    for source in (tmp_path / "merged", tmp_path / "merged" / RECORD_NAME):
        text, imported = ask("inspect", str(source))
        # A long path goes to a line of its own.
        assert " ".join(text.split()).startswith(f"ram over {trio.base_path}: 3 agents")
        assert imported.isdisjoint(HEAVY)
    page = tmp_path / "page.html"
    _, imported = ask("inspect", str(tmp_path / "merged"), "--html", str(page))
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert imported.isdisjoint({"torch", "transformers", "mergekit"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("merge", "merge.yml", "out", "--out-shard-size", "-1"),
            "reading the options failed: ",
        ),
        (("merge", "merge.yml", "out", "--out-shard-size", "abc"), "reading the options failed: "),
        (("merge", "merge.yml", "out", "-j", "0"), "reading the options failed: "),
        (("inspect", "merge.yml", "-j", "many"), "'many' is not a valid integer"),
        (("inspect", "merge.yml", "--qiuet"), "No such option"),
        (("merge", "merge.yml", "out", "elsewhere"), "unexpected extra argument (elsewhere)"),
        (("merge", "merge.yml"), "Missing argument 'FOLDER'"),
        (("merge", "other.yml", "out"), "File 'other.yml' does not exist"),
    ],
)
def test_wrong_options_are_refused(trio: Trio, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "merge.yml").write_text(yaml.safe_dump(trio.config("ram_plus")))
    result = CliRunner().invoke(main, options)
    assert result.exit_code == (1 if "failed" in message else 2)
    assert message in result.output


@pytest.mark.parametrize(
    "options",
    [
        ("--json", "merge.yml"),
        ("--html", "./merge.yml"),
        ("--json", "overlap", "--html", "../here/overlap"),
    ],
)
def test_no_file_is_written_twice_or_over_the_recipe(trio: Trio, tmp_path, monkeypatch, options):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    recipe = yaml.safe_dump(trio.config("ram_plus"))
    (here / "merge.yml").write_text(recipe)
    result = CliRunner().invoke(main, ["inspect", "merge.yml", *options])
    assert result.exit_code == 1
    assert "is given twice, and would be overwritten. Choose another file." in result.output
    assert (here / "merge.yml").read_text() == recipe


def test_what_has_no_effect_is_told(trio: Trio, tmp_path):
    trio.merge("ram")
    options = ["inspect", str(tmp_path / "merged"), "--trust-remote-code", "--seed", "3"]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 0, result.output
    assert "--seed has no effect without --sample" in result.output
    assert "options of mergekit have no effect on a record" in result.output


def test_a_record_from_elsewhere_is_shown_again_as_tables_and_as_a_page(trio: Trio, tmp_path):
    trio.merge("ram_plus")
    record = (tmp_path / "merged" / RECORD_NAME).read_text()
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path / "merged")])
    for name in ("overlap.json", "measured-on-a-cluster"):
        (tmp_path / name).write_text(record)
        again = CliRunner().invoke(main, ["inspect", str(tmp_path / name)])
        assert (again.exit_code, again.output) == (0, shown.output)
    page = tmp_path / "page.html"
    result = CliRunner().invoke(
        main, ["inspect", str(tmp_path / "overlap.json"), "--html", str(page)]
    )
    assert result.exit_code == 0, result.output
    assert "What the agents changed: a merge by ram_plus" in page.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as a record of overlaps"),
        ("[]", "it is no JSON object"),
        ('{"schema_version": 99}', "is no record of schema version 3"),
    ],
)
def test_a_json_file_that_is_no_record_is_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "overlap.json").write_text(text)
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "overlap.json")])
    assert result.exit_code == 1
    assert message in result.output
    assert len(result.output.splitlines()) == 1


def test_a_recipe_in_json_is_a_recipe(trio: Trio, tmp_path):
    import json

    source = Path(tmp_path / "merge.json")
    source.write_text(json.dumps(trio.config("ram_plus")))
    result = CliRunner().invoke(main, ["inspect", str(source), "--quiet", "--no-realised"])
    assert result.exit_code == 0, result.output
    assert unfolded(result.output).startswith(f"ram_plus over {trio.base_path}: 3 agents")
