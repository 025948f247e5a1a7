"""mergekit's own options, behind those of our commands.

Importing mergekit takes seconds. A command of ours knows its own options alone, and leaves all
other words of the command line to :func:`parse`, which imports mergekit's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from mergekit_ram.errors import working

if TYPE_CHECKING:
    from mergekit.options import MergeOptions

SETTINGS = {"ignore_unknown_options": True}
"""Of a command that :func:`words` decorates."""


def words(metavar: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the argument ``words``: all that is no option of its own."""
    return click.argument("words", metavar=metavar, nargs=-1, type=click.UNPROCESSED)


def parse(
    context: click.Context, words: Sequence[str], *arguments: click.Argument
) -> tuple[MergeOptions, dict[str, Any]]:
    """Read the words that a command has left, and apply mergekit's settings of log and threads.

    Args:
        context: of the command.
        words: arguments, and options of mergekit.
        arguments: that the command takes.

    Returns:
        mergekit's options, and the arguments by name.

    Raises:
        click.UsageError: a wrong option or argument.
        InputError: mergekit fails over a value.
    """
    from mergekit.options import add_merge_options

    @add_merge_options
    def take(merge_options: MergeOptions, **given: Any) -> tuple[MergeOptions, dict[str, Any]]:
        return merge_options, given

    options = reversed(vars(take)["__click_params__"])
    command = click.Command(None, params=[*arguments, *options], callback=take)
    name = context.info_name
    with working("reading the options"):
        with command.make_context(name, list(words), parent=context.parent) as inner:
            chosen, given = command.invoke(inner)
        chosen.apply_global_options()
    return chosen, given
