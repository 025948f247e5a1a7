"""mergekit's options on loading, tokenizers and devices, for commands that answer at once.

mergekit's own decorator imports mergekit, torch and transformers, which takes seconds that nobody
who asks for help wants to wait. A test holds the options here equal to mergekit's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mergekit.options import MergeOptions


def _switch(name: str, text: str) -> click.Option:
    name = name.replace("_", "-")
    return click.Option(
        [f"--{name}/--no-{name}"], type=bool, default=False, help=text, show_default=True
    )


def _value(name: str, text: str, *more: str, kind: type = str) -> click.Option:
    name = name.replace("_", "-")
    return click.Option([f"--{name}", *more], type=kind, help=text, show_default=True)


READING_OPTIONS = (
    _switch("allow_crimes", "Allow mixing architectures"),
    _switch(
        "unsafe_truncate_embeddings",
        "UNSAFE: discard trailing embedding rows to match the smallest vocabulary. Assumes "
        "identical token IDs; use tokenizer configuration instead.",
    ),
    _value("transformers_cache", "Override storage path for downloaded models"),
    _value("lora_merge_cache", "Path to store merged LORA models"),
    _value("lora_merge_dtype", "Override dtype when applying LoRAs"),
    _switch("cuda", "Perform matrix arithmetic on GPU"),
    _value("device", "Perform matrix arithmetic on specified device"),
    _switch("trust_remote_code", "Trust remote code from huggingface repos (danger)"),
    _switch("lazy_unpickle", "Experimental lazy unpickler for lower memory usage"),
    click.Option(
        ["-v", "verbosity"],
        type=int,
        count=True,
        default=0,
        help="Verbose logging (repeat for more verbosity)",
        show_default=False,
    ),
    _switch("quiet", "Suppress progress bars and other non-essential output"),
    _value("num_threads", "Number of threads to use for parallel CPU operations", "-j", kind=int),
)
"""The others of mergekit's are about writing."""


@dataclass(frozen=True)
class Chosen:
    """What was given on the command line, by the names of mergekit's options."""

    given: Mapping[str, Any]

    def applied(self) -> MergeOptions:
        """mergekit's own object, after its settings of log and threads are made."""
        from mergekit.options import MergeOptions

        options = MergeOptions(**self.given)
        options.apply_global_options()  # type: ignore[no-untyped-call]
        return options


def with_reading_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options, which it takes together as the argument ``chosen``."""

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> None:
        names = [str(option.name) for option in READING_OPTIONS]
        chosen = Chosen({name: arguments.pop(name) for name in names})
        command(**arguments, chosen=chosen)

    # click lists the last one first, as of decorators.
    wrapper.__click_params__ = [*reversed(READING_OPTIONS)]  # type: ignore[attr-defined]
    return wrapper
