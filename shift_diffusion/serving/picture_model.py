"""The pyfunc model: prompts and seeds in, PNG pictures out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.pyfunc import PythonModel

from shift_diffusion.config import ConfigError
from shift_diffusion.pictures import png_bytes, to_pil
from shift_diffusion.sampling import Pipeline
from shift_diffusion.serving.bundle import FLOAT, load_variant, read_bundle

LARGEST_REQUEST = 256  # pictures: a typing error must not block a server for hours
PARAMS = ("sampler", "num_steps", "guidance_scale", "negative_prompt", "variant")


class PictureModel(PythonModel):
    """Loads weights (safetensors) and configuration (JSON) on the CPU; the variants are loaded when first asked for."""

    def load_context(self, context: Any) -> None:
        self._folder = Path(context.artifacts["bundle"])
        self._bundle = read_bundle(self._folder)
        self._pipelines: dict[str, Pipeline] = {FLOAT: load_variant(self._folder, FLOAT)}

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """One picture per row.

        Args:
            model_input: DataFrame with `prompt` (text; empty or missing = none) and `seed` (integer; missing = number
                of the row).
            params: num_steps, sampler, guidance_scale, negative_prompt, variant (float32 | static_int8 | dynamic_int8 |
                weight_int8).

        Returns:
            DataFrame with `picture` (bytes of a PNG; base64 over REST), `seed` and `prompt`. The PNG itself carries
            prompt, seed and settings as text.
        """
        given = {**self._bundle["defaults"], **{k: v for k, v in (params or {}).items() if v is not None}}
        settings = self._settings(given)
        prompts, seeds = _columns(model_input)
        variant = given.get("variant") or FLOAT
        pipeline = self._pipelines.get(variant)
        if pipeline is None:
            pipeline = self._pipelines.setdefault(variant, load_variant(self._folder, variant))
        pictures = _sample(pipeline, prompts, seeds, settings)
        known = {"model": self._bundle["model"], "variant": variant, **settings}
        encoded = [
            png_bytes(to_pil(picture), {"prompt": prompt, "seed": seed, **known})
            for picture, prompt, seed in zip(pictures, prompts, seeds, strict=True)
        ]
        return pd.DataFrame({"picture": encoded, "seed": seeds, "prompt": prompts})

    def _settings(self, given: dict[str, Any]) -> dict[str, Any]:
        unknown = sorted(given.keys() - self._bundle["defaults"].keys() - set(PARAMS))
        if unknown:
            raise ConfigError([f"{name}: unknown; allowed: {', '.join(PARAMS)}" for name in unknown])
        return {
            "sampler": str(given["sampler"]),
            "num_steps": int(given["num_steps"]),
            "guidance_scale": float(given["guidance_scale"]),
            "spacing": str(given["spacing"]),
            "negative_prompt": str(given.get("negative_prompt") or "") or None,
        }


def _columns(model_input: Any) -> tuple[list[str], list[int]]:
    """Prompts ("" = none) and seeds of the rows, whichever column is there."""
    count = len(model_input)
    if not 1 <= count <= LARGEST_REQUEST:
        raise ConfigError([f"{count} rows; allowed: 1 to {LARGEST_REQUEST} pictures a request"])
    prompts = list(model_input["prompt"]) if "prompt" in model_input else [""] * count
    seeds = list(model_input["seed"]) if "seed" in model_input else list(range(count))
    return (
        ["" if _empty(prompt) else str(prompt) for prompt in prompts],
        [row if _empty(seed) else int(seed) for row, seed in enumerate(seeds)],
    )


def _empty(value: Any) -> bool:
    return value is None or value != value  # NaN is how pandas says None


def _sample(pipeline: Pipeline, prompts: list[str], seeds: list[int], settings: dict[str, Any]) -> list[Any]:
    """Rows with and without a prompt take different roads; a picture depends on its own row only."""
    pictures: list[Any] = [None] * len(seeds)
    for rows in ([i for i, p in enumerate(prompts) if p], [i for i, p in enumerate(prompts) if not p]):
        if rows:
            texts = [prompts[i] for i in rows] if prompts[rows[0]] else None
            drawn = pipeline.sample(texts, [seeds[i] for i in rows], **settings)
            for row, picture in zip(rows, drawn, strict=True):
                pictures[row] = picture
    return pictures
