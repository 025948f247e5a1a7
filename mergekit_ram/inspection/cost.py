"""What solving for directions costs, known from shapes before anything is read."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask

from mergekit_ram.directions import default_layout
from mergekit_ram.kernels.directions import fewest_operations
from mergekit_ram.merges.groups import agents_of
from mergekit_ram.merges.loads import PlannedLoads
from mergekit_ram.models.transformers_layout import Sides
from mergekit_ram.plan.inventory import Inventory

LITTLE = 1e12
"""Operations that two cores do in about five seconds, for models of some 100M parameters."""


def operations(
    merges: Sequence[ExecuteMergeMethodTask], loads: PlannedLoads, layouts: Sides
) -> float:
    """Operations of a merge by ``ram_directions``.

    Args:
        merges: of every weight of the output, once.
        loads: what they read.
        layouts: where the matrices are.
    """
    inventory, total = Inventory(), 0.0
    for merge in merges:
        count, name = len(agents_of(merge)), merge.output_weight.name
        headers = (inventory.header(load, name) for load in loads.get(name, ()))
        header = next((found for found in headers if found is not None), None)
        if header is None or count < 2:
            continue
        tensor = header.as_meta()
        layout = layouts.find(name) or default_layout(name, header.shape)
        if layout.holds_matrices(tensor):
            matrices = layout.matrices(tensor)
            total += math.fsum(fewest_operations(count, *matrix.shape) for matrix in matrices)
    return total
