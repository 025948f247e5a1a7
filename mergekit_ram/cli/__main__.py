"""``python -m mergekit_ram.cli`` is the command ``mergekit-ram``."""

from mergekit_ram.cli import main

main(prog_name="mergekit-ram")
