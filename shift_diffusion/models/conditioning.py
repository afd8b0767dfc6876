"""How a caption enters the network: three published styles, one interface, one learned null embedding.

flux   cross-attention to the tokens; the pooled embedding, added to the noise level's, drives adaptive instance norm
qwen   each token position has its own learned gain and offset; the tokens join the image's own in one attention
sdxl   the pooled embedding is concatenated with the noise-level and size embedding; cross-attention to the tokens
none   unconditional

A dropped or missing caption is one learned vector, the same tensor in training and in sampling: as the only token that
attention may see, and as the pooled embedding.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

STYLES = ("flux", "qwen", "sdxl", "none")
NUM_FREQUENCIES = 32
MAX_LOG_SNR = 7.0  # of the embedding: training hardly sees levels beyond it, and sampling starts at pure noise


class TextCondition(NamedTuple):
    """Encoded captions. tokens (B, L, D) float, mask (B, L) bool (True = a real token), pooled (B, D) float."""

    tokens: Tensor
    mask: Tensor
    pooled: Tensor


class Context(NamedTuple):
    """A condition inside the network. tokens (B, L + 1, E), mask (B, 1, 1, L + 1) bool, pooled (B, E)."""

    tokens: Tensor
    mask: Tensor
    pooled: Tensor


class TextProjection(nn.Module):
    """Text encoder space to network space, with the null embedding in place of dropped, missing and empty captions.

    Args:
        style: flux, qwen or sdxl.
        text_dim: D of the text encoder.
        dim: E of the network.
        max_tokens: longest caption; qwen has a gain per position.
    """

    def __init__(self, style: str, text_dim: int, dim: int, max_tokens: int):
        super().__init__()
        self.token_norm = nn.LayerNorm(text_dim)
        self.token = nn.Linear(text_dim, dim)
        self.null = nn.Parameter(torch.randn(dim) * 0.5)
        self.pooled = nn.Sequential(nn.LayerNorm(text_dim), nn.Linear(text_dim, dim)) if style != "qwen" else None
        self.gain = nn.Parameter(torch.ones(max_tokens, dim)) if style == "qwen" else None
        self.offset = nn.Parameter(0.02 * torch.randn(max_tokens, dim)) if style == "qwen" else None

    def forward(self, text: TextCondition | None, drop: Tensor | None, batch_size: int) -> Context:
        """text None, or drop (B,) True, or a caption without tokens: the null embedding."""
        null = self.null.expand(batch_size, 1, -1)
        if text is None:
            mask = torch.ones(batch_size, 1, 1, 1, dtype=torch.bool, device=null.device)
            return Context(null, mask, null[:, 0])
        empty = ~text.mask.any(1)
        drop = empty if drop is None else empty | drop
        mask = torch.cat([drop[:, None], text.mask & ~drop[:, None]], 1)[:, None, None]
        tokens = self._tokens(text.tokens)
        pooled = null[:, 0] if self.pooled is None else torch.where(drop[:, None], null[:, 0], self.pooled(text.pooled))
        return Context(torch.cat([null.to(tokens.dtype), tokens], 1), mask, pooled)

    def _tokens(self, tokens: Tensor) -> Tensor:
        projected = self.token(self.token_norm(tokens))
        if self.gain is None:
            return projected
        length = tokens.shape[1]
        if length > len(self.gain):
            raise ValueError(f"{length} text tokens, but the network was built for at most {len(self.gain)}")
        return projected * self.gain[:length] + self.offset[:length]


def fourier_features(value: Tensor, low: float, high: float) -> Tensor:
    """(B,) to (B, 2 * NUM_FREQUENCIES): sines and cosines of `value` at frequencies from low to high (rad per unit)."""
    frequencies = torch.logspace(
        math.log10(low), math.log10(high), NUM_FREQUENCIES, device=value.device, dtype=torch.float32
    )
    angle = value.float()[:, None] * frequencies
    return torch.cat([angle.sin(), angle.cos()], 1)


class LevelEmbedding(nn.Module):
    """What one level knows: its noise level, and with a condition the picture's size and the pooled text.

    Args:
        style: one of STYLES.
        dim: E.
    """

    def __init__(self, style: str, dim: int):
        super().__init__()
        features = 2 * NUM_FREQUENCIES
        self.style = style
        self.noise = nn.Sequential(nn.Linear(features, dim), nn.SiLU(), nn.Linear(dim, dim))
        if style == "sdxl":
            self.joint = nn.Sequential(nn.Linear(2 * dim + features, dim), nn.SiLU(), nn.Linear(dim, dim))
        elif style == "flux":
            self.joint = nn.Linear(dim, dim)

    def noise_level(self, log_snr: Tensor) -> Tensor:
        """(B or 1,) to (B or 1, E): depends on nothing else, so one row serves a batch at one noise level."""
        return self.noise(fourier_features(log_snr.clamp(-MAX_LOG_SNR, MAX_LOG_SNR), 0.1, 4.0))

    def forward(self, noise: Tensor, context: Context | None, size: int) -> Tensor:
        """noise (B or 1, E) from `noise_level`, size = height of the level's picture; (B or 1, E)."""
        if context is None or self.style in ("none", "qwen"):
            return nn.functional.silu(noise)
        if self.style == "flux":
            return nn.functional.silu(noise + self.joint(context.pooled))
        pooled = context.pooled
        scale = fourier_features(torch.full((1,), math.log2(size), device=noise.device), 0.1, 4.0)
        rows = [part.expand(len(pooled), -1).to(pooled.dtype) for part in (noise, scale)]
        return nn.functional.silu(noise + self.joint(torch.cat([*rows, pooled], 1)))
