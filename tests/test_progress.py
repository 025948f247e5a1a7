"""Lines of progress in a log, a bar in a terminal."""

from __future__ import annotations

import io

import pytest
import tqdm

from mergekit_ram import progress as module
from mergekit_ram.progress import progress, progress_in_bytes


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_log_gets_a_line_every_ten_seconds(capsys, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(tqdm.std, "time", clock)
    bar = progress(range(1000), "Counting overlaps", unit="tensor", quiet=False)
    for number in bar:
        clock.now += 0.1
        bar.set_postfix_str(f"{number} MB/s", refresh=False)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Counting overlaps: 0 of 1000 tensors, 0 %, 00:00 elapsed, ? left"
    assert 10 <= len(lines) <= 13
    assert lines[-1].startswith("Counting overlaps: 1000 of 1000 tensors, 100 %, 01:")
    assert lines[-1].endswith(", 999 MB/s")
    assert not any("\r" in line or "█" in line for line in lines)


def test_a_log_of_bytes_tells_rate_and_time_left(capsys, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(tqdm.std, "time", clock)
    with progress_in_bytes(4_000_000_000, "Merging", quiet=False) as bar:
        for number in (1, 2, 3, 4):
            clock.now += 20
            bar.set_postfix_str(f"unit {number} of 4", refresh=False)
            bar.update(1_000_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Merging: 0.00B of 4.00GB, 0 %, 00:00 elapsed, ? left, ?B/s"
    assert lines[2].startswith(
        "Merging: 2.00GB of 4.00GB, 50 %, 00:40 elapsed, 00:40 left, 50.0MB/s"
    )
    assert lines[2].endswith(", unit 2 of 4")
    assert len(lines) == 6


def test_a_terminal_has_its_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(module.sys, "stderr", terminal)
    assert list(progress(range(3), "Counting overlaps", unit="tensor", quiet=False)) == [0, 1, 2]
    assert "\rCounting overlaps: 100%|" in terminal.getvalue()


@pytest.mark.parametrize("items", [range(3), []])
def test_quiet_shows_nothing(capsys, items):
    assert list(progress(items, "Counting overlaps", unit="tensor", quiet=True)) == list(items)
    assert capsys.readouterr().err == ""
