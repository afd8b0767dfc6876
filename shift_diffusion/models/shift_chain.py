"""How features are moved: the arithmetic of `shift2d`, forward and backward, without a sampling grid.

A move by d pixels along an axis is a chain of moves by at most one pixel, t to the right or r to the left of it:

    t > 0: y[i] = (1 - t) x[i] + t x[i - 1]        r > 0: y[i] = (1 - r) x[i] + r x[i + 1]

with the border pixel repeated. At most one of the two is above zero for a channel, so two `lerp` calls serve channels
of either sign. Whole pixels are exact copies and moves commute, so the chain equals bilinear interpolation at d.
Tensors are walked through in chunks that stay in the CPU's cache: faster than memory, and temporaries stay small.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_BYTES = 2 << 20  # of one operand: a handful of them fit a last-level cache
DIMS = (3, 2)  # tensor dimension of offset component x, y


class Move(NamedTuple):
    """One link of the chain. right, left: (B or 1, C, 1, 1) in [0, 1]; slopes: their derivatives by the offset."""

    axis: int  # 0 = x, 1 = y
    right: Tensor
    left: Tensor
    right_slope: Tensor
    left_slope: Tensor

    def rows(self, part: slice) -> "Move":
        """The samples of a chunk; a move shared by the batch stays as it is."""
        return Move(self.axis, *(value if len(value) == 1 else value[part] for value in self[1:]))


def chain(offset: Tensor, reach: int, dtype: torch.dtype) -> list[Move]:
    """The moves by at most one pixel that make up offset (B or 1, C, 2), `reach` of them per axis."""
    moves = []
    for axis in range(2):
        pixels = offset[..., axis, None, None]
        for step in range(reach):
            right, left = pixels - step, -pixels - step
            values = right.clamp(0, 1), left.clamp(0, 1), _slope(right), -_slope(left)
            moves.append(Move(axis, *(value.to(dtype) for value in values)))
    return moves


def _slope(u: Tensor) -> Tensor:
    """Derivative of clamp(u, 0, 1); at a kink the mean of both sides, so a move of zero starts to learn centered."""
    return ((u > 0) & (u < 1)).to(u.dtype) + 0.5 * ((u == 0) | (u == 1)).to(u.dtype)


def _ends(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """First and last line along an axis."""
    return x.narrow(dim, 0, 1), x.narrow(dim, x.shape[dim] - 1, 1)


def apply(x: Tensor, move: Move, out: Tensor) -> Tensor:
    """The moved x, into `out`, which must not be x."""
    dim, rest = DIMS[move.axis], x.shape[DIMS[move.axis]] - 1
    first, _ = _ends(x, dim)
    _ends(out, dim)[0].copy_(first)
    torch.lerp(x.narrow(dim, 1, rest), x.narrow(dim, 0, rest), move.right, out=out.narrow(dim, 1, rest))
    body = out.narrow(dim, 0, rest)
    torch.lerp(body, x.narrow(dim, 1, rest), move.left, out=body)
    return out


def adjoint(grad: Tensor, move: Move, out: Tensor) -> Tensor:
    """The gradient by x of `apply`, into `out`: every pixel collects from where it was copied to."""
    dim, rest = DIMS[move.axis], grad.shape[DIMS[move.axis]] - 1
    (first, last), (out_first, out_last) = _ends(grad, dim), _ends(out, dim)
    torch.lerp(grad.narrow(dim, 0, rest), grad.narrow(dim, 1, rest), move.right, out=out.narrow(dim, 0, rest))
    torch.mul(last, 1 - move.right, out=out_last)
    body = out.narrow(dim, 1, rest)
    torch.lerp(body, grad.narrow(dim, 0, rest), move.left, out=body)
    out_first.addcmul_(first, move.right).addcmul_(first, move.left, value=-1)
    out_last.addcmul_(last, move.left)
    return out


def offset_gradient(grad: Tensor, x: Tensor, move: Move, buffer: Tensor) -> Tensor:
    """(b, C) gradient by the offset of one move of x: sum of grad times the difference to the neighbor it mixes in."""
    dim, rest = DIMS[move.axis], x.shape[DIMS[move.axis]] - 1
    (first, last), (buffer_first, buffer_last) = _ends(x, dim), _ends(buffer, dim)
    right, left = move.right_slope, move.left_slope  # 0 .. 1 and -1 .. 0
    torch.mul(x, -(right + left), out=buffer)
    buffer.narrow(dim, 1, rest).addcmul_(x.narrow(dim, 0, rest), right)
    buffer_first.addcmul_(first, right)
    buffer.narrow(dim, 0, rest).addcmul_(x.narrow(dim, 1, rest), left)
    buffer_last.addcmul_(last, left)
    wide = torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype
    return buffer.mul_(grad).sum((2, 3), dtype=wide)


def chunks(x: Tensor) -> list[slice]:
    """Samples in groups of about CHUNK_BYTES; on an accelerator, where launches cost more than memory, all at once."""
    bytes_per_sample = x[0].numel() * x.element_size()
    size = len(x) if x.device.type != "cpu" else max(1, CHUNK_BYTES // max(bytes_per_sample, 1))
    return [slice(start, min(start + size, len(x))) for start in range(0, len(x), size)]


class ShiftFunction(torch.autograd.Function):
    """x (B, C, H, W) moved by offset (B or 1, C, 2) within whole `reach` pixels; keeps x and the offset, no more."""

    @staticmethod
    def forward(ctx, x: Tensor, offset: Tensor, reach: int) -> Tensor:
        ctx.save_for_backward(x, offset)
        ctx.reach = reach
        moves, out = chain(offset, reach, x.dtype), torch.empty_like(x)
        for part in chunks(x):
            h = x[part]
            for move in moves[:-1]:
                h = apply(h, move.rows(part), torch.empty_like(h))
            apply(h, moves[-1].rows(part), out[part])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, offset = ctx.saved_tensors
        if grad.stride() != x.stride():  # lerp over two layouts is many times slower than the copy
            grad = torch.empty_like(x).copy_(grad)
        moves, grad_x = chain(offset, ctx.reach, x.dtype), torch.empty_like(x)
        grad_offset = torch.zeros(offset.shape, dtype=torch.promote_types(offset.dtype, torch.float32), device=x.device)
        for part in chunks(x):
            own = [move.rows(part) for move in moves]
            inputs = [x[part]]
            for move in own[:-1]:
                inputs.append(apply(inputs[-1], move, torch.empty_like(inputs[-1])))
            g = grad[part]
            rows = grad_offset if len(offset) == 1 else grad_offset[part]
            for index in reversed(range(len(own))):
                h, move = inputs.pop(), own[index]
                by_offset = offset_gradient(g, h, move, torch.empty_like(h))
                rows[..., move.axis] += by_offset.sum(0, keepdim=True) if len(offset) == 1 else by_offset
                g = adjoint(g, move, grad_x[part] if index == 0 else torch.empty_like(h))
        return grad_x, grad_offset.to(offset.dtype), None
