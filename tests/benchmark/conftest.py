"""Puts the scripts of ``examples/agents`` on the path, as the benchmark itself does."""

import benchmarks.agents  # noqa: F401
