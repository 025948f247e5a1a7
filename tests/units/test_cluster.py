"""Units on a Ray cluster: two nodes on this machine, one of which is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from unit_merges import assert_finished, merge

WORDS_OF_FAILURE = ("Warning", "WARNING", "ERROR", "failed", "not supported", "Traceback")

LOST_NODE = """
import os, sys, threading, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from unit_merges import merge

recipe, out = Path(sys.argv[1]), Path(sys.argv[2])
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
node = cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
os.environ["RAY_ADDRESS"] = cluster.address
lost = []

def lose():
    while not list(out.glob(".mergekit-ram/unit-*.json")):
        time.sleep(0.01)
    cluster.remove_node(node, allow_graceful=False)
    lost.append(node)

threading.Thread(target=lose, daemon=True).start()
result = merge(recipe, out, "--engine", "ray", "--workers", "2")
print(result.output)
print("lost", len(lost))
sys.exit(result.exit_code)
"""


@pytest.mark.slow
def test_a_merge_outlives_a_node(plus, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LOST_NODE, str(plus.recipe), str(tmp_path / "out")],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "lost 1" in done.stdout
    said = (done.stdout + done.stderr).splitlines()
    assert not [line for line in said if any(word in line for word in WORDS_OF_FAILURE)], said
    assert_finished(tmp_path / "out", plus.weights)


class Ray(ModuleType):
    """In the place of Ray: does every unit at once in this process."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.address: list[str] = []
        self.exceptions = SimpleNamespace(RayError=OSError)

    def init(self, address: str, **_: object) -> None:
        self.address.append(address)

    def remote(self, **_: object) -> Callable[..., object]:
        return lambda function: SimpleNamespace(remote=partial(Done, function))

    def wait(self, done: list[object]) -> tuple[list[object], list[object]]:
        return done[:1], done[1:]

    def get(self, done: Done) -> object:
        return done.function(*done.arguments)

    def shutdown(self) -> None:
        self.address.append("left")


class Done:
    """A unit that Ray was given."""

    def __init__(self, function: Callable[..., object], *arguments: object):
        self.function, self.arguments = function, arguments


@pytest.mark.parametrize(("named", "joined"), [("", "local"), ("head:6379", "head:6379")])
def test_a_cluster_is_joined_where_it_is_named_and_else_one_is_started(
    plus, tmp_path, monkeypatch, named, joined
):
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_ADDRESS", named)
    result = merge(plus.recipe, tmp_path / "out", "--engine", "ray", "--workers", "2")
    assert result.exit_code == 0, result.output
    # Once for counting and merging. By "local" Ray looks for no file that names a cluster.
    assert ray.address == [joined, "left"]
    assert_finished(tmp_path / "out", plus.weights)


def test_without_ray_the_line_that_installs_it_is_named(plus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = merge(plus.recipe, tmp_path / "out", "--engine", "ray")
    assert result.exit_code == 1
    assert "pip install '.[cluster]'" in result.output
