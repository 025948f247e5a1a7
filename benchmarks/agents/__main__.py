"""``python -m benchmarks.agents``."""

from __future__ import annotations

import click

from benchmarks.agents.commands.report import report
from benchmarks.agents.commands.small import small
from benchmarks.agents.commands.tiny import tiny


@click.group()
def main() -> None:
    """Train agents by reinforcement learning, merge them in every way, and measure the merges.

    \b
    Answer the question on tiny models, on two CPU cores:
      python -m benchmarks.agents tiny
    See within a minute that it runs at all:
      python -m benchmarks.agents tiny --quick --output trial
    """


main.add_command(tiny)
main.add_command(small)
main.add_command(report)

if __name__ == "__main__":
    main()
