"""From the outs of the training stages to the folder that MLflow registers: models-from-code, weights and JSON."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from typing import Any

from shift_diffusion.serving import bundle
from shift_diffusion.tracking.record import path_md5

SERVED_PACKAGES = ("shift-diffusion", "torch", "torchao", "safetensors", "numpy", "pillow", "pydantic")


def model_hash(model_folder: Path, int8_folder: Path | None) -> str:
    """The same for the same weights and configuration, wherever and whenever they were made."""
    parts = [path_md5(model_folder / name) for name in bundle.NEEDED]
    parts.append(path_md5(int8_folder) if int8_folder is not None else None)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def save_pyfunc(out: Path, bundle_folder: Path, defaults: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Writes the MLflow model into the new folder `out`; nothing in it is pickled.

    bundle_folder: written by `bundle.write_bundle`; its name must be `bundle`, MLflow keeps the folder's name.
    """
    import mlflow.pyfunc
    import pandas as pd

    mlflow.pyfunc.save_model(
        path=str(out),
        python_model=str(Path(bundle.__file__).with_name("entry.py")),
        artifacts={"bundle": str(bundle_folder)},
        signature=signature(defaults),
        input_example=pd.DataFrame({"prompt": [""], "seed": [0]}),  # MLflow tries it: what can't draw isn't registered
        pip_requirements=_requirements(),
        metadata=metadata,
    )


def signature(defaults: dict[str, Any]) -> Any:
    """prompt and seed in (either may be missing), PNG bytes out; how to sample as parameters with defaults."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    inputs = Schema([ColSpec("string", "prompt", required=False), ColSpec("long", "seed", required=False)])
    outputs = Schema([ColSpec("binary", "picture"), ColSpec("long", "seed"), ColSpec("string", "prompt")])
    params = ParamSchema(
        [
            ParamSpec("num_steps", "long", int(defaults["num_steps"])),
            ParamSpec("sampler", "string", str(defaults["sampler"])),
            ParamSpec("guidance_scale", "double", float(defaults["guidance_scale"])),
            ParamSpec("negative_prompt", "string", ""),
            ParamSpec("variant", "string", bundle.FLOAT),
        ]
    )
    return ModelSignature(inputs, outputs, params)


def _requirements() -> list[str]:
    found = []
    for name in SERVED_PACKAGES:
        try:
            found.append(f"{name}=={importlib.metadata.version(name).partition('+')[0]}")
        except importlib.metadata.PackageNotFoundError:  # the library run from its source tree
            continue
    return found
