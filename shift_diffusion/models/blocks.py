"""The layers a level is made of: modulated residual block and attention over image and text tokens."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shift_diffusion.models.conditioning import Context


def zero_init(layer: nn.Module) -> nn.Module:
    """Zero weight and bias: a branch that starts as nothing."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class GroupNorm(nn.GroupNorm):
    """PyTorch's, by way of the layout in which it is fast.

    In bfloat16 and channels_last its CPU kernels go channel by channel where a group isn't whole vectors: copying to
    NCHW and back is up to five times faster.
    """

    def forward(self, x: Tensor) -> Tensor:
        whole_vectors = self.num_channels // self.num_groups % 16 == 0
        last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        if whole_vectors or not last or x.device.type != "cpu" or x.dtype != torch.bfloat16:
            return super().forward(x)
        return super().forward(x.contiguous()).contiguous(memory_format=torch.channels_last)


class ResBlock(nn.Module):
    """x + conv(silu(modulated norm(conv(silu(norm(x)))))); the embedding gives scale and shift of the second norm.

    Args:
        channels: C, in and out.
        embedding_dim: E.
        groups: of both norms; the second has one group per channel with `instance_norm` (AdaIN, the flux style).
        dropout: probability, in training only.
    """

    def __init__(self, channels: int, embedding_dim: int, groups: int, dropout: float, instance_norm: bool):
        super().__init__()
        self.norm1 = GroupNorm(groups, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.modulation = nn.Linear(embedding_dim, 2 * channels)
        self.norm2 = GroupNorm(channels if instance_norm else groups, channels)
        self.conv2 = zero_init(nn.Conv2d(channels, channels, 3, padding=1))
        self.dropout = dropout

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """x (B, C, H, W), embedding (B or 1, E), already through its nonlinearity."""
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.modulation(embedding)[:, :, None, None].chunk(2, 1)
        h = F.silu(torch.addcmul(shift, self.norm2(h), 1 + scale))
        if self.dropout:
            h = F.dropout(h, self.dropout, self.training)
        return x + self.conv2(h)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(D)) v without storing the products.

    q (B, heads, L, D), k and v (B, heads, S, D); mask bool, True = may be looked at, broadcast to (B, heads, L, S).
    """
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.requires_grad:
        # PyTorch's backward on the CPU takes five times as long in bfloat16 as in float32
        with torch.autocast("cpu", enabled=False):
            return F.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=mask).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Attention(nn.Module):
    """Image tokens look at one another and at the text.

    Args:
        channels: C, a multiple of head_dim.
        head_dim: channels per head.
        groups: of the norm.
        context_dim: E of the text tokens; 0 = self-attention only.
        joint: text tokens join the image's keys and values (qwen); otherwise a cross-attention follows.
    """

    def __init__(self, channels: int, head_dim: int, groups: int, context_dim: int, joint: bool):
        super().__init__()
        self.head_dim, self.joint = head_dim, joint
        self.norm = GroupNorm(groups, channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = zero_init(nn.Linear(channels, channels))
        self.context_kv = nn.Linear(context_dim, 2 * channels) if context_dim else None
        if context_dim and not joint:
            self.query = nn.Linear(channels, channels)
            self.cross_out = zero_init(nn.Linear(channels, channels))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x: Tensor, context: Context | None) -> Tensor:
        """x (B, C, H, W), the same shape out."""
        h = self.norm(x).permute(0, 2, 3, 1).flatten(1, 2)  # a view when x is channels_last
        q, k, v = (self._heads(part) for part in self.qkv(h).chunk(3, -1))
        if self.context_kv is None or context is None:
            h = self._attend(q, k, v, self.out)
        elif self.joint:
            h = self._attend(q, *self._join(k, v, context), self.out, self._joint_mask(context, k.shape[2]))
        else:
            tokens = h
            h = self._attend(q, k, v, self.out)
            k, v = (self._heads(part) for part in self.context_kv(context.tokens).chunk(2, -1))
            h = h + self._attend(self._heads(self.query(tokens)), k, v, self.cross_out, context.mask)
        return x + h.unflatten(1, x.shape[2:]).permute(0, 3, 1, 2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, out: nn.Linear, mask: Tensor | None = None) -> Tensor:
        return out(attention(q, k, v, mask).transpose(1, 2).flatten(2))

    def _join(self, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        text_k, text_v = (self._heads(part) for part in self.context_kv(context.tokens).chunk(2, -1))
        return torch.cat([k, text_k], 2), torch.cat([v, text_v], 2)

    @staticmethod
    def _joint_mask(context: Context, num_pixels: int) -> Tensor:
        return F.pad(context.mask, (num_pixels, 0), value=True)
