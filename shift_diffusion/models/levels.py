"""Core and outer levels: each takes a noised picture to a prediction and its finest features.

A level goes down (blocks), hands its features inwards, comes back up (blocks), and adds what it kept on the way down,
moved by the shift operator. The core is a small UNet of such levels; an outer level holds a whole smaller network.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from shift_diffusion.models.blocks import Attention, GroupNorm, ResBlock, zero_init
from shift_diffusion.models.conditioning import Context, LevelEmbedding
from shift_diffusion.models.shift import SpatialShift2d
from shift_diffusion.models.spec import NetworkSpec, OuterSpec

NUM_MIDDLE_BLOCKS = 4  # at the coarsest level, where a block costs a quarter of one a level further out


class Stack(nn.Module):
    """Residual blocks at one resolution, each followed by attention if the level has it.

    Args:
        count: number of blocks.
        width: C.
        attention: whether attention follows each block.
    """

    def __init__(self, spec: NetworkSpec, count: int, width: int, attention: bool):
        super().__init__()
        groups, flux = spec.norm_groups, spec.style == "flux"
        context_dim = 0 if spec.style == "none" else spec.embedding_dim
        self.blocks = nn.ModuleList(
            ResBlock(width, spec.embedding_dim, groups, spec.dropout, flux) for _ in range(count)
        )
        self.attentions = nn.ModuleList(
            Attention(width, spec.head_dim, groups, context_dim, spec.style == "qwen")
            for _ in range(count if attention else 0)
        )
        self.gradient_checkpointing = False

    def forward(self, h: Tensor, embedding: Tensor, context: Context | None) -> Tensor:
        """h (B, C, H, W), embedding (B or 1, E)."""
        for index, block in enumerate(self.blocks):
            h = self._run(block, h, embedding)
            if self.attentions:
                h = self._run(self.attentions[index], h, context)
        return h

    def _run(self, layer: nn.Module, *inputs) -> Tensor:
        if self.gradient_checkpointing and torch.is_grad_enabled():
            return checkpoint(layer, *inputs, use_reentrant=False)
        return layer(*inputs)


class Level(nn.Module):
    """Blocks down, blocks up, and the shifted skip connection between them."""

    def __init__(self, spec: NetworkSpec, width: int, num_blocks: int, attention: bool, reach: float):
        super().__init__()
        self.down = Stack(spec, num_blocks, width, attention)
        self.up = Stack(spec, num_blocks, width, attention)
        gate_dim = spec.embedding_dim if spec.gate else 0
        self.shift = SpatialShift2d(width, reach, gate_dim, spec.init_scale) if spec.shift else None
        self.skip = nn.Conv2d(width, width, 1)

    def ascend(self, h: Tensor, kept: Tensor, noise: Tensor, embedding: Tensor, context: Context | None) -> Tensor:
        """h from the inside, `kept` from this level's way down, both (B, C, H, W)."""
        if self.shift is not None:
            kept = self.shift(kept, noise)
        return self.up(h + self.skip(kept), embedding, context)


class Head(nn.Module):
    """Norm, nonlinearity and a zero-initialised convolution to the output channels."""

    def __init__(self, width: int, out_channels: int, groups: int):
        super().__init__()
        self.norm = GroupNorm(groups, width)
        self.conv = zero_init(nn.Conv2d(width, out_channels, 3, padding=1))

    def forward(self, h: Tensor) -> Tensor:
        return self.conv(F.silu(self.norm(h)))


class Core(nn.Module):
    """The innermost network: a UNet over spec.widths, attention where spec.attention says so."""

    patch = 1

    def __init__(self, spec: NetworkSpec, out_channels: int):
        super().__init__()
        widths = spec.widths
        self.width = widths[0]
        self.embedding = LevelEmbedding(spec.style, spec.embedding_dim)
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1)
        reaches = spec.reach[: len(widths)][::-1]  # coarsest first in the spec, finest first here
        self.levels = nn.ModuleList(
            Level(spec, width, spec.num_blocks, attention, reach)
            for width, attention, reach in zip(widths, spec.attention, reaches, strict=True)
        )
        pairs = list(zip(widths, widths[1:], strict=False))
        self.narrow = nn.ModuleList(nn.Conv2d(fine, coarse, 3, 2, 1) for fine, coarse in pairs)
        self.widen = nn.ModuleList(nn.Conv2d(coarse, fine, 1) for fine, coarse in pairs)
        self.middle = Stack(spec, NUM_MIDDLE_BLOCKS * spec.num_blocks, widths[-1], spec.attention[-1])
        self.head = Head(widths[0], out_channels, spec.norm_groups)

    def forward(
        self, x_t: Tensor, log_snr: Tensor, context: Context | None, injected: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """x_t (B, 3, H, W), log_snr (B or 1,), injected (B, C, H, W) from an outer level; prediction and features."""
        noise = self.embedding.noise_level(log_snr)
        embedding = self.embedding(noise, context, x_t.shape[-2])
        h = self.stem(x_t)
        h = h if injected is None else h + injected
        kept = []
        for index, level in enumerate(self.levels):
            h = level.down(self.narrow[index - 1](h) if index else h, embedding, context)
            kept.append(h)
        h = self.middle(h, embedding, context)
        for index in reversed(range(len(self.levels))):
            h = self.levels[index].ascend(h, kept[index], noise, embedding, context)
            if index:
                h = F.interpolate(self.widen[index - 1](h), scale_factor=2.0, mode="nearest")
        return self.head(h), h


class Outer(nn.Module):
    """One level around a smaller network: features go in at half the resolution, features and a prediction come out.

    Args:
        level: width, patch and blocks. With patch 2 the level works on 2x2 patches, at half its picture's resolution.
        inner_width: channels of the inner network's finest features.
        inner_patch: its patch.
    """

    def __init__(self, spec: NetworkSpec, level: OuterSpec, reach: float, inner: tuple[int, int], out_channels: int):
        super().__init__()
        inner_width, inner_patch = inner
        self.width, self.patch = level.width, level.patch
        self.ratio = 2 * inner_patch // level.patch  # of this level's feature resolution to the inner one's
        pixels = level.patch**2
        self.embedding = LevelEmbedding(spec.style, spec.embedding_dim)
        self.stem = nn.Conv2d(3 * pixels, level.width, 3, padding=1)
        self.level = Level(spec, level.width, level.num_blocks, False, reach)
        self.inject = zero_init(_strided(level.width, inner_width, self.ratio))
        self.receive = nn.Conv2d(inner_width, level.width, 1)
        self.head = Head(level.width, out_channels * pixels, spec.norm_groups)

    def forward(
        self,
        x_t: Tensor,
        log_snr: Tensor,
        context: Context | None,
        injected: Tensor | None,
        inner: Callable[[Tensor], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `Core.forward`; `inner` maps features to inject to the inner prediction and features.

        Returns:
            detail (B, out_channels, H, W), the inner prediction (B, out_channels, H/2, W/2), features.
        """
        noise = self.embedding.noise_level(log_snr)
        embedding = self.embedding(noise, context, x_t.shape[-2])
        h = self.stem(x_t if self.patch == 1 else F.pixel_unshuffle(x_t, self.patch))
        h = h if injected is None else h + injected
        kept = self.level.down(h, embedding, context)
        prediction, features = inner(self.inject(kept))
        h = self.receive(features)
        h = h if self.ratio == 1 else F.interpolate(h, scale_factor=float(self.ratio), mode="nearest")
        h = self.level.ascend(h, kept, noise, embedding, context)
        detail = self.head(h)
        return detail if self.patch == 1 else F.pixel_shuffle(detail, self.patch), prediction, h


def _strided(in_channels: int, out_channels: int, ratio: int) -> nn.Conv2d:
    """A convolution that looks at every pixel and divides the resolution by `ratio` (1, 2 or 4)."""
    if ratio == 1:
        return nn.Conv2d(in_channels, out_channels, 1)
    if ratio == 2:
        return nn.Conv2d(in_channels, out_channels, 3, 2, 1)
    return nn.Conv2d(in_channels, out_channels, ratio, ratio)
