"""How features are moved on a CPU: the tent weights of an offset as a small kernel, and one depthwise convolution.

With an offset for every sample, every channel of every sample is a channel of one single picture, (1, B C, H, W) in the
memory order (H, W, B C): copying there and back is cheaper than a call per sample. The repeated border is written in
the same copy, so the backward needs x alone and makes the copy again.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def tent(offset: Tensor, reach: int) -> Tensor:
    """(..., 2 reach + 1) weights of the neighbors at distance -reach .. reach.

    `maximum` shares the gradient at its kinks between both sides, so an offset of zero learns.
    """
    taps = torch.arange(-reach, reach + 1, device=offset.device, dtype=offset.dtype)
    weights = 1 - (taps - offset.unsqueeze(-1)).abs()
    return torch.maximum(weights, torch.zeros_like(weights))


def convolve(x: Tensor, offset: Tensor, reach: int) -> Tensor:
    """x (B, C, H, W) moved by offset (B or 1, C, 2), |offset| <= reach; dtype and layout of x."""
    taps = tent(-offset, reach)  # a convolution layer correlates: its kernel is mirrored
    kernel = (taps[:, :, 1, :, None] * taps[:, :, 0, None, :]).flatten(0, 1).unsqueeze(1).to(x.dtype)
    with torch.autocast(x.device.type, enabled=False):
        if len(offset) == 1:
            return F.conv2d(F.pad(x, (reach,) * 4, mode="replicate"), kernel, groups=len(kernel))
        moved = _ConvolvePlanes.apply(x.contiguous(memory_format=torch.channels_last), kernel, reach)
    channels_last = x.is_contiguous(memory_format=torch.channels_last)
    return moved if channels_last else moved.contiguous()


class _ConvolvePlanes(torch.autograd.Function):
    """x (B, C, H, W) in channels_last, kernel (B C, 1, 2 reach + 1, 2 reach + 1)."""

    @staticmethod
    def forward(ctx, x: Tensor, kernel: Tensor, reach: int) -> Tensor:
        ctx.save_for_backward(x, kernel)
        ctx.reach = reach
        moved = F.conv2d(_as_picture(_padded(x, reach)), kernel, groups=len(kernel))
        return torch.empty_like(x).copy_(_as_features(moved, x))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, kernel = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)  # a strided transposition takes many times longer
        grad = _as_picture(grad.permute(2, 3, 0, 1).contiguous())
        inputs, plain = (grad, _as_picture(_padded(x, ctx.reach)), kernel), ([1, 1], [0, 0], [1, 1], False, [0, 0])
        by_padded, by_kernel, _ = torch.ops.aten.convolution_backward(
            *inputs, None, *plain, len(kernel), [True, True, False]
        )
        by_x = _without_border(_as_features(by_padded, x), ctx.reach)
        return torch.empty_like(x).copy_(by_x), by_kernel, None


def _padded(x: Tensor, reach: int) -> Tensor:
    """(H + 2 reach, W + 2 reach, B, C), the border pixels repeated."""
    rows, (height, width) = x.permute(2, 3, 0, 1), x.shape[2:]
    padded = x.new_empty(height + 2 * reach, width + 2 * reach, *x.shape[:2])
    middle = padded.narrow(1, reach, width)
    middle.narrow(0, reach, height).copy_(rows)
    middle.narrow(0, 0, reach).copy_(rows[:1])
    middle.narrow(0, height + reach, reach).copy_(rows[-1:])
    padded.narrow(1, 0, reach).copy_(middle[:, :1])
    padded.narrow(1, width + reach, reach).copy_(middle[:, -1:])
    return padded


def _without_border(grad: Tensor, reach: int) -> Tensor:
    """The adjoint of the repeated border, in place: (B, C, H, W) of (B, C, H + 2 reach, W + 2 reach)."""
    for dim in (2, 3):
        size = grad.shape[dim] - 2 * reach
        grad.narrow(dim, reach, 1).add_(grad.narrow(dim, 0, reach).sum(dim, keepdim=True))
        grad.narrow(dim, size + reach - 1, 1).add_(grad.narrow(dim, size + reach, reach).sum(dim, keepdim=True))
        grad = grad.narrow(dim, reach, size)
    return grad


def _as_picture(planes: Tensor) -> Tensor:
    """(1, B C, H, W) of contiguous (H, W, B, C), without a copy."""
    return planes.flatten(2).unsqueeze(0).permute(0, 3, 1, 2)


def _as_features(picture: Tensor, like: Tensor) -> Tensor:
    """(B, C, H, W) of (1, B C, H, W), without a copy."""
    return picture.squeeze(0).unflatten(0, like.shape[:2])
