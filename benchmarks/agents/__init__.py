"""Does RAM help? Agents trained by reinforcement learning, every baseline, one command.

A folder imports only from those left of it: ``running``, ``merges`` and ``scores``; ``tiny`` and
``small``, the two scales; ``findings``; ``tables``; ``commands``. The tiny model, its tasks and its
trainer are those of ``examples/agents``, a folder of scripts.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "agents"))
