"""mergekit's options on loading, tokenizers and devices, for commands that answer at once.

mergekit's own decorator imports mergekit, torch and transformers, which takes seconds that nobody
who asks for help wants to wait. A test holds the options here equal to mergekit's, but for the
words of their help.
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
    _switch("allow_crimes", "Let models of different architectures meet."),
    _switch(
        "unsafe_truncate_embeddings",
        "Cut all vocabularies to the shortest one. Right only where equal ids mean equal tokens; "
        "`tokenizer:` in the YAML aligns them by name.",
    ),
    _value("transformers_cache", "Folder for models that are downloaded."),
    _value("lora_merge_cache", "Folder for models that an adapter was merged into."),
    _value("lora_merge_dtype", "Dtype in which adapters are merged."),
    _switch("cuda", "Compute on a GPU."),
    _value("device", "Compute on this device, as torch names it."),
    _switch("trust_remote_code", "Run code that comes with a model. Only for models you trust."),
    _switch("lazy_unpickle", "Read pickled checkpoints piece by piece, in less memory."),
    click.Option(
        ["-v", "verbosity"],
        type=int,
        count=True,
        default=0,
        help="Say more; -vv says most.",
        show_default=False,
    ),
    _switch("quiet", "No progress bars."),
    _value("num_threads", "Threads of the arithmetic on the CPU.", "-j", kind=int),
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
