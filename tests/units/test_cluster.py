"""Units on a Ray cluster: two nodes on this machine, one of which is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from unit_merges import assert_finished, merge

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
    assert_finished(tmp_path / "out", plus.weights)


def test_without_ray_the_line_that_installs_it_is_named(plus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = merge(plus.recipe, tmp_path / "out", "--engine", "ray")
    assert result.exit_code == 1
    assert "pip install '.[cluster]'" in result.output
