"""mergekit's options on models, devices and writing, for commands that answer at once.

mergekit's own decorator imports mergekit, torch and transformers, which takes seconds that nobody
who asks for help wants to wait. A test holds the options here equal to mergekit's, but for the
words of their help.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mergekit.options import MergeOptions


UNITS_OF_SIZE = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


class ShardSize(click.ParamType):  # type: ignore[type-arg]  # generic in some versions alone
    """A number of parameters as mergekit writes it: ``5B``, ``400M``, ``8K``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int):
            return value
        text = str(value).strip().upper()
        digits = text.rstrip("KMB")
        unit = text[len(digits) :]
        if not (digits.isdecimal() and int(digits) > 0 and unit in UNITS_OF_SIZE):
            self.fail(f"{value!r} is no number of parameters; write 5B, 400M or 8K")
        return int(digits) * UNITS_OF_SIZE[unit]


def _switch(name: str, text: str, default: bool = False) -> click.Option:
    name = name.replace("_", "-")
    return click.Option(
        [f"--{name}/--no-{name}"], type=bool, default=default, help=text, show_default=True
    )


def _value(name: str, text: str, *more: str, kind: Any = str, default: Any = None) -> click.Option:
    name = name.replace("_", "-")
    return click.Option(
        [f"--{name}", *more], type=kind, default=default, help=text, show_default=True
    )


MERGE_OPTIONS = (
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
    _switch(
        "low_cpu_memory", "Keep results on the GPU where it has more memory than this machine."
    ),
    click.Option(
        ["--out-shard-size"],
        type=ShardSize(),
        default=5 * 10**9,
        help="Parameters per file of the output: 5B, 400M, 8K.  [default: 5B]",
        show_default=False,
    ),
    _switch("copy_tokenizer", "Copy a tokenizer to the output.", default=True),
    _switch("clone_tensors", "Copy tensors before they are saved."),
    _switch("trust_remote_code", "Run code that comes with a model. Only for models you trust."),
    _value("random_seed", "Of methods that draw numbers; those of this package do not.", kind=int),
    _switch("lazy_unpickle", "Read pickled checkpoints piece by piece, in less memory."),
    _switch("write_model_card", "Write README.md, which tells of the merge.", default=True),
    _switch("safe_serialization", "Save as safetensors.", default=True),
    click.Option(
        ["-v", "verbosity"],
        type=int,
        count=True,
        default=0,
        help="Say more; -vv says most.",
        show_default=False,
    ),
    _switch("quiet", "No progress bars."),
    _switch("read_to_gpu", "Read weights to the GPU at once."),
    _switch("multi_gpu", "Share the work out among all GPUs."),
    _value(
        "num_threads", "Threads of the arithmetic on the CPU.", "-j", kind=click.IntRange(min=1)
    ),
    click.Option(
        ["--gpu-rich"],
        type=bool,
        is_flag=True,
        default=False,
        help="The same as --cuda --low-cpu-memory --read-to-gpu --multi-gpu.",
        show_default=True,
    ),
    _switch("async_write", "Write files beside the arithmetic; takes more memory."),
    _value("write_threads", "Threads that do so.", kind=int, default=1),
)
"""All of mergekit's, in its order."""

WRITING = frozenset(
    {
        "async_write",
        "clone_tensors",
        "copy_tokenizer",
        "gpu_rich",
        "low_cpu_memory",
        "multi_gpu",
        "out_shard_size",
        "random_seed",
        "read_to_gpu",
        "safe_serialization",
        "write_model_card",
        "write_threads",
    }
)
"""Options that say nothing to an inspection, which writes no model."""

READING_OPTIONS = tuple(option for option in MERGE_OPTIONS if option.name not in WRITING)


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


def with_options(
    options: Sequence[click.Option],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options, which it takes together as the argument ``chosen``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(**arguments: Any) -> None:
            chosen = Chosen(
                {str(option.name): arguments.pop(str(option.name)) for option in options}
            )
            command(**arguments, chosen=chosen)

        # click lists the last one first, as of decorators.
        wrapper.__click_params__ = [*reversed(options)]  # type: ignore[attr-defined]
        return wrapper

    return decorate
