"""`shift-diffusion sample`: pictures into files, each of which tells how it was made."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from shift_diffusion.config import ConfigError
from shift_diffusion.pictures import grid, save_png, to_pil
from shift_diffusion.progress import progress_bar
from shift_diffusion.registry.loading import LoadedModel, load_model

FALLBACK = {"sampler": "dpmpp_2m", "num_steps": 12, "guidance_scale": 1.5, "spacing": "uniform"}


def draw(options: argparse.Namespace) -> None:
    """Draws `options.count` pictures into the folder `options.out` and prints where they are.

    options: prompt, count, seed, model, variant, sampler, steps, guidance, negative_prompt, batch_size, device, grid,
        out; the command line's.

    Raises: ConfigError for values out of range; TrackingError when the registry can't be reached.
    """
    _refuse_nonsense(options)
    model = load_model(options.model, options.variant, options.device)
    settings = _settings(options, model)
    seeds = [options.seed + index for index in range(options.count)]
    with progress_bar(options.count, "sampling") as bar:
        pictures = model.pipeline.sample(
            None if options.prompt is None else [options.prompt] * options.count,
            seeds,
            batch_size=options.batch_size,
            callback=bar.update,
            **settings,
        )
    known = {"prompt": options.prompt or "", "model": model.label, "variant": options.variant}
    known |= {name: value for name, value in settings.items() if value is not None}
    for path in _save(options, pictures, seeds, known):
        print(path)


def _refuse_nonsense(options: argparse.Namespace) -> None:
    problems = [
        f"{name}: {value} is not allowed; must be at least {least}"
        for name, value, least in (
            ("--count", options.count, 1),
            ("--seed", options.seed, 0),
            ("--steps", options.steps if options.steps is not None else 1, 1),
            ("--batch-size", options.batch_size, 1),
            ("--guidance", options.guidance if options.guidance is not None else 0, 0),
        )
        if not value >= least
    ]
    if problems:
        raise ConfigError(problems)


def _settings(options: argparse.Namespace, model: LoadedModel) -> dict[str, Any]:
    given = {"sampler": options.sampler, "num_steps": options.steps, "guidance_scale": options.guidance}
    chosen = {**FALLBACK, **model.defaults, **{name: value for name, value in given.items() if value is not None}}
    return {**chosen, "negative_prompt": options.negative_prompt}


def _save(options: argparse.Namespace, pictures: Any, seeds: list[int], known: dict[str, Any]) -> list[Path]:
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    if options.grid:
        path = out / f"grid-{seeds[0]}-{seeds[-1]}.png"
        save_png(grid(pictures), path, {**known, "seeds": f"{seeds[0]}..{seeds[-1]}"})
        return [path]
    paths = [out / f"{seed:06d}.png" for seed in seeds]
    for path, picture, seed in zip(paths, pictures, seeds, strict=True):
        save_png(to_pil(picture), path, {**known, "seed": seed})
    return paths
