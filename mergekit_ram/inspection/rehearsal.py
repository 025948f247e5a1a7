"""Says before an inspection what the merge itself would say: its warnings, its refusals."""

from __future__ import annotations

from mergekit.config import MergeConfiguration
from mergekit.merge_methods import get
from mergekit.options import MergeOptions

from mergekit_ram import host
from mergekit_ram.autoload import METHOD_NAMES
from mergekit_ram.errors import InputError, RamError
from mergekit_ram.hush import hushed
from mergekit_ram.inspection.configuration import as_ram_plus
from mergekit_ram.plan.recipe import warn_about_parameters
from mergekit_ram.plan.warnings import warn_about_idle_merges
from mergekit_ram.record.merge import MergeRecorder


def plan_as_ram_plus(config: MergeConfiguration, options: MergeOptions) -> MergeRecorder:
    """Plan a merge as configured, for what there is to say, and then as one of ``ram_plus``.

    Raises:
        RamError: the merge would be refused, or has no base to compare the agents with.
    """
    method = get(config.merge_method)
    inspected = as_ram_plus(config)
    if config.merge_method == inspected.merge_method:
        return host.plan_weights(config, options)
    if config.merge_method in METHOD_NAMES:
        host.rehearse(config, options)
        # Nobody needs to hear everything twice.
        with hushed():
            return host.plan_weights(inspected, options)
    warn_about_parameters(config, method.spec)
    try:
        host.rehearse(config, options)
    except RamError:
        raise
    except Exception as error:  # methods of others refuse in many ways
        reason = " ".join(str(error).split())
        raise InputError(f"mergekit refuses the merge by {config.merge_method}: {reason}") from None
    # What ram_plus would leave undone, another method may do.
    with hushed(lambda record: record.funcName != warn_about_idle_merges.__name__):
        return host.plan_weights(inspected, options)
