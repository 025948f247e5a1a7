"""Compares what two installations of this package write, tensor by tensor.

    python benchmarks/same_bytes.py OLD/bin/python NEW/bin/python

Each interpreter has one version installed. Both merge the local recipes, the tiny architectures
of the tests, random models under random parameters, and random tensors, by compiled loops and by
torch. ``ram`` and ``ram_plus`` must be equal bit for bit, ``ram_directions`` within 1e-5 of the
largest update.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import torch

ROOT = Path(__file__).parents[1]
EXACT = ("ram", "ram_plus")
TOLERANCE = 1e-5
DTYPES = ("bfloat16", "float16", "float32", "float64")
AGENTS = (1, 2, 3, 8, 20)
SIZES = (1, 7, 1023, 70_001)
DRAWS = 6
"""Draws of parameters per dtype and number of agents."""

Found = dict[str, Any]
"""By case: a digest, or for ram_directions the tensor and the size of the largest update."""


def digest(tensor: torch.Tensor) -> str:
    data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(data).hexdigest()[:16]}"


def drawn(rng: random.Random, agents: int, method: str) -> dict[str, Any]:
    """Parameters of a method, each set in half of the draws."""
    shared: dict[str, Any] = {
        "epsilon": rng.choice([0.0, 1e-6, 1e-3]),
        "scale": rng.choice([0.0, 0.5, 1.7]),
    }
    if method == "ram_directions":
        shared["ridge"] = rng.choice([0.05, 1.0])
    else:
        shared["overlap_power"] = rng.choice([0.0, 0.5, 0.3])
    if method == "ram_plus":
        shared |= {"r": rng.choice([0.0, 0.2]), "alpha": rng.choice([0.5, 1.0])}
    chosen = {name: value for name, value in shared.items() if rng.random() < 0.5}
    if rng.random() < 0.5:
        chosen["weight"] = [rng.choice([0.0, 0.5, 1.0, -1.0, 1.3]) for _ in range(agents)]
    if method == "ram_plus" and rng.random() < 0.3:
        chosen["rescale"] = [rng.choice([1.0, 1.1, 0.9]) for _ in range(agents)]
    return chosen


# What one installation writes


def of_tensors() -> Iterator[tuple[str, Any]]:
    """Random tensors through ``count`` and ``merge``."""
    from mergekit_ram import count, merge

    for dtype_name in DTYPES:
        dtype = getattr(torch, dtype_name)
        for agents in AGENTS:
            rng = random.Random(f"{dtype_name} {agents}")
            for draw in range(DRAWS):
                generator = torch.Generator().manual_seed(rng.randrange(2**31))
                size = rng.choice(SIZES)
                base = torch.randn(size, generator=generator).mul_(0.02)
                updated = []
                for _ in range(agents):
                    step = torch.randn(size, generator=generator) * 10 ** rng.uniform(-6, -2)
                    step *= torch.rand(size, generator=generator) < rng.random()
                    updated.append((base + step).to(dtype))
                options = drawn(rng, agents, "ram_plus")
                epsilon = options.pop("epsilon", 1e-5)
                for name in ("r", "alpha"):
                    options.pop(name, None)
                if "weight" in options:
                    options["weight"] = [w or 1.0 for w in options["weight"]]
                if rng.random() < 0.5:
                    options["out_dtype"] = getattr(torch, rng.choice(DTYPES))
                case = f"tensor/{dtype_name}/{agents}/{draw}"
                stored = base.to(dtype)
                yield case, digest(merge(stored, updated, epsilon=epsilon, **options))
                counts = count(stored, updated, epsilon=epsilon)
                yield f"{case}/counts", repr(counts)


def of_models(folder: Path) -> Iterator[tuple[str, Any]]:
    """Recipes, architectures, and random models, through ``mergekit-yaml``."""
    import yaml
    from architectures import ARCHITECTURES
    from families import Family
    from models import make_agent, make_base, read_weights, run_yaml, succeed

    def merged(case: str, config: dict[str, Any], agents: list[str]) -> Iterator[tuple[str, Any]]:
        out = folder / case.replace("/", "-").replace(" ", "_")
        succeed(run_yaml(config, out, "--no-copy-tokenizer", "--quiet"))
        written = read_weights(out)
        if config["merge_method"] in EXACT:
            yield from ((f"{case}/{name}", digest(tensor)) for name, tensor in written.items())
            return
        base = read_weights(Path(config["base_model"]))
        updates = [read_weights(Path(agent)) for agent in agents]
        for name, tensor in written.items():
            changed = (u[name].double() - base[name].double() for u in updates if name in u)
            largest = max((float(τ.abs().max()) for τ in changed if τ.numel()), default=0.0)
            yield f"{case}/{name}", (tensor, largest)

    for recipe in sorted((ROOT / "examples" / "yaml").glob("*.yml")):
        config = yaml.safe_load(recipe.read_text())
        if Path(config["base_model"]).exists():
            agents = [model["model"] for model in config["models"]]
            yield from merged(f"recipe/{recipe.stem}", config, agents)

    for number, name in enumerate(ARCHITECTURES):
        family = Family(folder / f"family{number}", name)
        for method in (*EXACT, "ram_directions"):
            config = family.config(merge_method=method)
            agents = [model["model"] for model in config["models"]]
            yield from merged(f"architecture/{name}/{method}", config, agents)

    for dtype_name in DTYPES:
        base_path = folder / dtype_name
        make_base(base_path, getattr(torch, dtype_name))
        paths = [str(folder / f"{dtype_name}-{number}") for number in range(max(AGENTS))]
        for number, path in enumerate(paths):
            make_agent(Path(path), base_path, 0.05 + 0.9 * number / len(paths), number + 1)
        for agents in AGENTS:
            rng = random.Random(f"model {dtype_name} {agents}")
            for method in (*EXACT, "ram_directions"):
                options = drawn(rng, agents, method)
                each = [
                    {name: options[name][i] for name in ("weight", "rescale") if name in options}
                    for i in range(agents)
                ]
                config = {
                    "merge_method": method,
                    "base_model": str(base_path),
                    "models": [
                        {"model": path, "parameters": own}
                        for path, own in zip(paths[:agents], each, strict=True)
                    ],
                    "parameters": {n: v for n, v in options.items() if n not in each[0]},
                }
                if rng.random() < 0.3:
                    config["out_dtype"] = "float32"
                case = f"model/{dtype_name}/{agents}/{method}"
                yield from merged(case, config, paths[:agents])


def write(target: Path, models: bool) -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    os.chdir(ROOT)
    found: Found = {}
    with tempfile.TemporaryDirectory() as folder:
        cases = [of_tensors()] + ([of_models(Path(folder))] if models else [])
        for some in cases:
            found.update(some)
    torch.save(found, target)


# Both compared


def difference(old: Any, new: Any) -> str | None:
    """Why two results are not the same, or None."""
    if new is None:
        return "not written"
    if isinstance(old, str):
        return None if old == new else f"{old} became {new}"
    (before, largest), (after, _) = old, new
    if before.dtype != after.dtype or before.shape != after.shape:
        return f"{before.dtype} {tuple(before.shape)} became {after.dtype} {tuple(after.shape)}"
    # One rounding to the stored dtype may fall on the other side.
    rounding = before.double().abs() * torch.finfo(before.dtype).eps
    error = (before.double() - after.double()).abs() - rounding
    worst = float(error.max()) if error.numel() else 0.0
    return None if worst <= TOLERANCE * largest else f"{worst:.3g} apart, updates to {largest:.3g}"


@click.command(help=(__doc__ or "").replace("\n\n", "\n\n\b\n", 1))
@click.argument("interpreters", nargs=-1, type=click.Path(exists=True))
@click.option("--write", "target", type=click.Path(path_type=Path), hidden=True)
@click.option("--no-models", is_flag=True, help="Tensors alone, which takes seconds.")
def main(interpreters: tuple[str, ...], target: Path | None, no_models: bool) -> None:
    if target is not None:
        write(target, not no_models)
        return
    old, new = interpreters
    failed = 0
    for path, switch in (("compiled loops", {}), ("torch", {"NUMBA_DISABLE_JIT": "1"})):
        results = []
        with tempfile.TemporaryDirectory() as folder:
            for number, interpreter in enumerate((old, new)):
                file = Path(folder) / str(number)
                command = [os.path.abspath(interpreter), __file__, "--write", str(file)]
                command += ["--no-models"] if no_models else []
                offline = {"HF_HUB_OFFLINE": "1", "MERGEKIT_RAM_QUIET": "1"}
                subprocess.run(command, check=True, cwd=folder, env=os.environ | switch | offline)
                results.append(torch.load(file, weights_only=True))
        before, after = results
        found = {case: difference(before[case], after.get(case)) for case in before}
        wrong = {case: why for case, why in found.items() if why}
        for case, why in list(wrong.items())[:20]:
            click.echo(f"{path}: {case}: {why}")
        click.echo(f"{path}: {len(before):,} results compared, {len(wrong)} differ")
        failed += len(wrong)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
