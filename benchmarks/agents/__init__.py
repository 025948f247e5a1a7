"""Does RAM help? Agents trained by reinforcement learning, every baseline, one command.

The tiny model, its tasks and its trainer are those of ``examples/agents``, a folder of scripts.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "agents"))
