"""Checks of the models' files, before mergekit opens them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mergekit.common import ModelReference
from mergekit.config import MergeConfiguration

from mergekit_ram.errors import InputError
from mergekit_ram.merges.headers import check_checkpoint
from mergekit_ram.plan import misplaced

ARCHITECTURE_REMEDY = (
    "All models must be of one architecture and size, with the base that the agents were trained "
    "from as `base_model:`."
)


def find_architecture(
    find: Callable[..., Any], config: MergeConfiguration, *args: Any, **kwargs: Any
) -> Any:
    """mergekit's search for the models' architecture, after a check of their files.

    Raises:
        InputError: the models' files are broken, or do not fit together; an unknown dtype.
    """
    misplaced.check_dtypes(config)
    models = sorted(config.referenced_models(), key=str)
    check_models(models)
    try:
        return find(*args, **kwargs)
    except OSError as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0]
        raise InputError(
            f"a configuration of the models {_listed(models)} cannot be read: {reason} "
            "A local folder is written as ./folder, a model of the hub as owner/name."
        ) from None
    except RuntimeError as error:
        raise InputError(
            f"the models {_listed(models)} do not fit together: {error}. {ARCHITECTURE_REMEDY}"
        ) from None


def check_models(models: Iterable[ModelReference]) -> None:
    """Check the files of all models that lie in local folders.

    Raises:
        InputError: a folder that does not exist or is named in two ways, a broken file,
            quantised weights.
    """
    folders: dict[tuple[Path, object], ModelReference] = {}
    for model in models:
        path = model.model.path
        if Path(path).is_dir():
            check_checkpoint(path, str(model))
            twin = folders.setdefault((Path(path).resolve(), model.lora), model)
            if twin is not model:
                raise InputError(
                    f"the models {twin} and {model} are the same folder; a merge would count its "
                    "updates twice. Name every model once, and in one way."
                )
        elif _looks_local(path):
            raise InputError(
                f"model {model}: there is no folder {path}. Correct the path; a model of the hub "
                "is written as owner/name."
            )
        if model.lora and _looks_local(model.lora.path) and not Path(model.lora.path).is_dir():
            raise InputError(f"model {model}: there is no adapter folder {model.lora.path}.")


def _listed(models: Iterable[ModelReference]) -> str:
    return ", ".join(map(str, models))


def _looks_local(path: str) -> bool:
    return path.startswith((".", "/", "~")) or path.count("/") > 1
