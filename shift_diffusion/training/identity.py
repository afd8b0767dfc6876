"""What makes a run that run: a hash of everything that determines its result, down to the code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shift_diffusion.config import Params

_PACKAGE = Path(__file__).resolve().parent.parent
_CODE = (  # what a stage's result depends on: its code deps in dvc.yaml
    "data/augment.py",
    "data/images.py",
    "data/store.py",
    "data/text_store.py",
    "models",
    "process",
    "runtime.py",
    "training",
)


def run_hash(
    stage: int, params: Params, data_hash: str, parent: nn.Module | None, device: torch.device, world: int
) -> str:
    """40 hexadecimal digits; equal exactly if params sections, data, parent weights, device kind and code are."""
    content = {
        "stage": stage,
        "params": determining_params(stage, params),
        "data": data_hash,
        "parent": None if parent is None else weights_hash(parent),
        "device": device.type,
        "world": world,
        "torch": torch.__version__,
        "code": code_hash(),
    }
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=20).hexdigest()


def determining_params(stage: int, params: Params) -> dict[str, Any]:
    """The part of params.yaml that stage `stage` depends on (how many checkpoints are kept isn't)."""
    names = ("seed", "runtime", "text", "model", "shift", "conditioning", "process", "loss", "optim", "train")
    content = params.model_dump(mode="json", by_alias=True, include=set(names))
    train = content.pop("train")
    del train["cadence"]["keep_checkpoints"]
    return {**content, "cadence": train["cadence"], "stage": train[f"stage-{stage}"]}


def weights_hash(network: nn.Module) -> str:
    """Of names, shapes and bytes of all parameters and buffers."""
    digest = hashlib.blake2b(digest_size=20)
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def code_hash(entries: Iterable[str] = _CODE) -> str:
    """Of the source files of the package that take part in training."""
    digest = hashlib.blake2b(digest_size=20)
    for entry in entries:
        path = _PACKAGE / entry
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(_PACKAGE)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()
