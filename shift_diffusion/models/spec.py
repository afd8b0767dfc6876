"""What determines a network's shape: one frozen record, made from params.yaml, stored as JSON beside the weights."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shift_diffusion.config import ConfigError

if TYPE_CHECKING:
    from shift_diffusion.config import Params

TEXT_DIMS = {"minilm": 384, "none": 0}


@dataclass(frozen=True, kw_only=True)
class OuterSpec:
    """One level around a smaller network: width, pixels per patch side (1 or 2), residual blocks per direction."""

    width: int
    patch: int
    num_blocks: int


@dataclass(frozen=True, kw_only=True)
class NetworkSpec:
    """Everything `NestedUNet` needs. Lists run from the coarsest outer level to the finest, `reach` from the core's
    coarsest level outwards, `widths` from the core's finest level inwards (as in params.yaml).
    """

    widths: tuple[int, ...]
    attention: tuple[bool, ...]
    num_blocks: int
    outer: tuple[OuterSpec, ...]
    embedding_dim: int
    head_dim: int
    norm_groups: int
    dropout: float
    shift: bool
    reach: tuple[float, ...]  # pixels of each level
    gate: bool
    init_scale: float  # of the reach
    style: str
    text_dim: int  # D of the text encoder, 0 without
    max_tokens: int
    family: str  # "vp" | "flow"
    prediction: str  # "eps" | "x0" | "v" | "velocity"
    num_bins: int  # intensity bins of x_0 per channel; 0 = regression

    def to_dict(self) -> dict:
        """JSON-able; `from_dict` is its inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, content: dict) -> NetworkSpec:
        """Raises ConfigError when a key is missing or unknown: weights of another version must not load by luck."""
        expected = {field.name for field in dataclasses.fields(cls)}
        problems = [f"network config: key '{key}' is missing" for key in sorted(expected - content.keys())]
        problems += [f"network config: unknown key '{key}'" for key in sorted(content.keys() - expected)]
        if problems:
            raise ConfigError(problems)
        tuples = {key: tuple(content[key]) for key in ("widths", "attention", "reach")}
        return cls(**{**content, **tuples, "outer": tuple(OuterSpec(**level) for level in content["outer"])})

    @classmethod
    def from_params(cls, params: Params, stage: int, text_dim: int | None = None) -> NetworkSpec:
        """The network of stage 1..3; stage k has k - 1 outer levels.

        Args:
            text_dim: D of the prepared text; needed for encoders whose size isn't known beforehand (clip, t5).
        """
        model, shift, style = params.model, params.shift, params.conditioning.style
        if not 1 <= stage <= len(model.outer) + 1:
            raise ValueError(f"stage {stage} is not one of 1..{len(model.outer) + 1}")
        return cls(
            widths=model.widths,
            attention=model.attention,
            num_blocks=model.num_blocks,
            outer=tuple(OuterSpec(**level.model_dump()) for level in model.outer[: stage - 1]),
            embedding_dim=model.embedding_dim,
            head_dim=model.head_dim,
            norm_groups=model.norm_groups,
            dropout=model.dropout,
            shift=shift.enabled,
            reach=shift.reach[: len(model.widths) + stage - 1],
            gate=shift.gate,
            init_scale=shift.init_scale,
            style=style,
            text_dim=_text_dim(params, text_dim),
            max_tokens=params.text.max_tokens,
            family=params.process.family,
            prediction=params.process.prediction,
            num_bins=params.loss.num_bins if params.loss.cross_entropy else 0,
        )


def _text_dim(params: Params, text_dim: int | None) -> int:
    if params.conditioning.style == "none":
        return 0
    if text_dim is None:
        text_dim = TEXT_DIMS.get(params.text.encoder)
    if not text_dim:
        raise ConfigError([f"text.encoder: the width of '{params.text.encoder}' embeddings is needed (text_dim)"])
    return text_dim
