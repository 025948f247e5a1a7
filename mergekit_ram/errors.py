"""What goes wrong, said once and in full.

Every error is a ``click.ClickException``, so that mergekit's commands print its message and
no traceback, and a ``ValueError`` or ``RuntimeError`` for programs that catch those.
"""

from __future__ import annotations

import click

from mergekit_ram.visible import visible


class RamError(click.ClickException):
    """Base of all errors that this package raises on purpose.

    Names in a message come from files: what cannot be seen in them is shown escaped.
    """

    def __init__(self, message: str):
        super().__init__(visible(message))


class ParameterError(RamError, ValueError):
    """A parameter value out of range; the message names parameter, value and range."""


class InputError(RamError, ValueError):
    """Models that cannot be merged; the message names model, tensor and the way out."""


class PlanError(RamError, RuntimeError):
    """A merge that was not planned as a whole, so that no λ_t is known."""


class HostError(RamError, RuntimeError):
    """An installed mergekit that this version does not know how to extend."""


class MissingExtraError(RamError, RuntimeError):
    """A package that only an extra brings; the message names the line that installs it."""
