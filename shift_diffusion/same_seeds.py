"""Scores of several versions of one model, drawn with the same seeds and captions: the difference is the version's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shift_diffusion.config import ConfigError, Evaluate
from shift_diffusion.data.store import PreparedData
from shift_diffusion.evaluation.features import Extractor
from shift_diffusion.evaluation.metrics import check_count, scores
from shift_diffusion.evaluation.reference import Reference
from shift_diffusion.evaluation.samples import draw_samples
from shift_diffusion.models.saving import load_network
from shift_diffusion.runtime import has_fast_bfloat16
from shift_diffusion.sampling import Pipeline

SEED = 0


class SameSeeds:
    """fid and kid of any network with the config of one model.

    Args:
        config: of the model folder. section: sampler, steps, guidance and features. count: number of pictures.
    """

    def __init__(
        self, config: Mapping[str, Any], section: Evaluate, data: PreparedData, reference: Reference, count: int
    ):
        check_count(count, "num_samples")
        if (reference.name, reference.content_hash) != (section.features, data.content_hash):
            raise ConfigError(["data/reference: made of other data or features; run `dvc repro reference`"])
        self.config, self.section, self.data, self.reference, self.count = dict(config), section, data, reference, count
        self._extractor = Extractor(section.features, "cpu", section.batch_size)

    def __call__(self, network: Callable[..., Tensor]) -> dict[str, float]:
        """network: on the CPU, called like a NestedUNet."""
        return self.score(self.draw(network))

    def draw(self, network: Callable[..., Tensor]) -> Tensor:
        """uint8 (count, 3, R, R)."""
        return draw_samples(Pipeline(network, self.config), self.section, self.data, SEED, count=self.count).pictures

    @torch.no_grad()
    def score(self, pictures: Tensor) -> dict[str, float]:
        found = scores(
            self._extractor(pictures),
            self.reference.features["train"],
            self.reference.statistics["train"],
            self.section.kid_subset_size,
        )
        return {"fid": found["fid"], "kid": found["kid"]}

    def about(self) -> dict[str, Any]:
        """JSON-able: what two scores must share to be compared."""
        return {
            "sampler": self.section.sampler,
            "num_steps": self.section.num_steps,
            "spacing": self.section.spacing,
            "guidance_scale": self.section.guidance_scale,
            "num_samples": self.count,
            "seed": SEED,
            "reference": self.reference.key,
        }


def bfloat16_scores(
    model: str | Path, section: Evaluate, data: str | Path, reference: str | Path, count: int
) -> dict[str, float] | None:
    """Scores of the float model computing in bfloat16; None where the CPU emulates it, fifty times slower."""
    if not has_fast_bfloat16(torch.device("cpu")):
        return None
    network, config = load_network(model)

    def in_bfloat16(*inputs: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return network(*inputs)

    return SameSeeds(config, section, PreparedData.open(data), Reference.load(reference), count)(in_bfloat16)
