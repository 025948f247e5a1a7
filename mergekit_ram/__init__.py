"""RAM, RAM+ and ram_directions for mergekit: merge agents trained by reinforcement learning.

Importing this package switches the plugin on, as ``import torch`` does by itself. It imports
neither torch nor mergekit before one of the names below is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mergekit_ram.autoload import install, uninstall
from mergekit_ram.text import keep_log_visible as _keep_log_visible

if TYPE_CHECKING:
    from mergekit_ram.inspection.inspect import inspect
    from mergekit_ram.kernels.ram import OverlapCounts, count, merge
    from mergekit_ram.methods import RamDirectionsMerge, RamMerge, RamPlusMerge
    from mergekit_ram.overlap import AgentOverlap, OverlapStatistics, TensorOverlap
    from mergekit_ram.record.check import read_record
    from mergekit_ram.record.schema import OverlapRecord
    from mergekit_ram.show.page import write_page

_keep_log_visible()

__version__ = "0.1.0"

__all__ = [
    "AgentOverlap",
    "OverlapCounts",
    "OverlapRecord",
    "OverlapStatistics",
    "RamDirectionsMerge",
    "RamMerge",
    "RamPlusMerge",
    "TensorOverlap",
    "__version__",
    "count",
    "inspect",
    "install",
    "merge",
    "read_record",
    "uninstall",
    "write_page",
]

_HOMES = {
    "inspection.inspect": ["inspect"],
    "kernels.ram": ["OverlapCounts", "count", "merge"],
    "methods": ["RamDirectionsMerge", "RamMerge", "RamPlusMerge"],
    "overlap": ["AgentOverlap", "OverlapStatistics", "TensorOverlap"],
    "record.check": ["read_record"],
    "record.schema": ["OverlapRecord"],
    "show.page": ["write_page"],
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


install()
