"""How far an unfinished merge is."""

from __future__ import annotations

from pathlib import Path

from mergekit_ram.errors import InputError
from mergekit_ram.units.folder import WorkFolder


def progress_text(out_path: Path) -> str:
    """What ``mergekit-ram status FOLDER`` prints of a folder.

    Raises:
        InputError: there is no such folder, or its manifest is damaged.
    """
    if not out_path.is_dir():
        raise InputError(
            f"{out_path}: there is no such folder. Give the folder of a merge by units."
        )
    work = WorkFolder(out_path)
    if not work.exists:
        return f"{out_path}: no unfinished merge\n"
    manifest = work.manifest()
    work = WorkFolder(out_path, manifest.digest, manifest.ending)
    lines = [f"{out_path}: an unfinished merge of {len(manifest.models)} models"]
    for kind, title in (("count", "counting"), ("shard", "merging")):
        units = [unit for unit in manifest.units if unit.kind == kind]
        done = [unit for unit in units if work.receipt(unit) is not None]
        if units:
            whole, ready = (sum(u.read + u.written for u in group) for group in (units, done))
            share = 100 * ready / whole if whole else 100.0
            lines.append(
                f"{title:<9} {len(done)} of {len(units)} units, {ready / 1e9:,.2f} of "
                f"{whole / 1e9:,.2f} GB ({share:.0f} %)"
            )
    lines.append("The same command again resumes from here; --restart throws this away.")
    return "\n".join(lines) + "\n"
