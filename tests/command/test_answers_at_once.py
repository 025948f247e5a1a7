"""What needs no model imports nothing that takes seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from models import Trio

from mergekit_ram.cli import main
from mergekit_ram.options import READING_OPTIONS, Chosen
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
        (("status", "--help"), "whether the plugin is on"),
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
        assert text.startswith(f"ram over {trio.base_path}: 3 agents")
        assert imported.isdisjoint(HEAVY)
    page = tmp_path / "page.html"
    _, imported = ask("inspect", str(tmp_path / "merged"), "--html", str(page))
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert imported.isdisjoint({"torch", "transformers", "mergekit"})


def test_the_options_are_mergekits_own():
    from mergekit.options import MergeOptions, add_merge_options

    @add_merge_options
    def command(merge_options: MergeOptions) -> None: ...

    theirs = {option.name: option for option in command.__click_params__}
    for option in READING_OPTIONS:
        # What they do is said in words of our own.
        ours, their = (o.to_info_dict() for o in (option, theirs[option.name]))
        assert ours.pop("help")
        assert their.pop("help")
        assert ours == their
        assert option.show_default == theirs[option.name].show_default
    names = [option.name for option in reversed(command.__click_params__)]
    ours = [option.name for option in READING_OPTIONS]
    assert ours == [name for name in names if name in ours]
    # What is left out is about writing, which an inspection does not do.
    assert set(names) - set(ours) == {
        "async_write",
        "clone_tensors",
        "copy_tokenizer",
        "gpu_rich",
        "low_cpu_memory",
        "multi_gpu",
        "out_shard_size",
        "random_seed",
        "read_to_gpu",
        "safe_serialization",
        "write_model_card",
        "write_threads",
    }


def test_the_options_reach_mergekit():
    chosen = Chosen({"quiet": True, "cuda": False, "device": "cpu", "verbosity": 0})
    options = chosen.applied()
    assert (options.quiet, options.device) == (True, "cpu")


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
        ("[]", "is no record of overlaps"),
        ('{"schema_version": 99}', "its schema_version is 99"),
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
    assert result.output.startswith(f"ram_plus over {trio.base_path}: 3 agents")
