"""Convolution and linear layers with int8 weights and activations, their scales fixed beforehand (W8A8, static).

    x ~ input_scale * (q_x - input_zero_point)    q_x in 0 .. 2^bits - 1, one scale per layer
    w ~ weight_scale[c] * q_w                     q_w in -127 .. 127, one scale per output channel

One layer, three ways to compute the same numbers, up to rounding:

program     PT2E's quantize / dequantize operators, while torch.compile traces: Inductor lowers them to int8 kernels
kernel      oneDNN's int8 kernels called directly: no compiler, no compilation
simulated   float32 arithmetic on the rounded values, for every other device
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WEIGHT_LIMIT = 127


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric per output channel (dim 0).

    Returns:
        int8 of the shape of `weight` (float32), and (C_out,) float32 scales, > 0 also for channels that are all zero.
    """
    largest = weight.detach().abs().flatten(1).amax(1)
    scale = (largest / WEIGHT_LIMIT).clamp_min(torch.finfo(torch.float32).tiny * 2**16)
    rounded = (weight.detach() / _per_channel(scale, weight)).round_()
    return rounded.clamp_(-WEIGHT_LIMIT, WEIGHT_LIMIT).to(torch.int8), scale


def dequantize_weight(weight: Tensor, scale: Tensor) -> Tensor:
    """Inverse of `quantize_weight` up to half a step; float32."""
    return weight.float() * _per_channel(scale, weight)


def _per_channel(scale: Tensor, weight: Tensor) -> Tensor:
    return scale.view(-1, *[1] * (weight.dim() - 1))


class StaticInt8(nn.Module):
    """What both kinds of layer share. Buffers hold everything that is saved; `prepare` makes the rest from them.

    Args:
        layer: the float layer: shape, bias and geometry are taken over, weights are quantized.
        activation_bits: 8, or 7 where sums of two products overflow (see `capability`).
    """

    def __init__(self, layer: nn.Conv2d | nn.Linear, activation_bits: int):
        super().__init__()
        weight, scale = quantize_weight(layer.weight)
        self.register_buffer("weight", weight)
        self.register_buffer("weight_scale", scale)
        self.register_buffer("input_scale", torch.ones(()))
        self.register_buffer("input_zero_point", torch.zeros((), dtype=torch.int32))
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())
        self.activation_limit = 2**activation_bits - 1
        self._packed: Tensor | None = None
        self.prepare(kernels=False)

    def prepare(self, kernels: bool) -> None:
        """Call after the buffers have changed: reads the scales and, with `kernels`, packs weights for oneDNN."""
        self._scale, self._zero = float(self.input_scale), int(self.input_zero_point)
        self._no_offset = torch.zeros_like(self.weight_scale, dtype=torch.int32)
        self._packed = self._pack() if kernels else None

    def set_input_range(self, scale: float, zero_point: int) -> None:
        """scale > 0 and the integer that stands for 0; call `prepare` afterwards."""
        self.input_scale.fill_(scale)
        self.input_zero_point.fill_(zero_point)

    def forward(self, x: Tensor) -> Tensor:
        """x float of the layer's input shape; float32 of its output shape."""
        if torch.compiler.is_compiling():
            return self._compute(*self._as_program(x))
        if self._packed is not None and x.device.type == "cpu":
            return self._kernel(self._rounded(x.float()).to(torch.uint8))
        weight = dequantize_weight(self.weight, self.weight_scale)
        return self._compute((self._rounded(x.float()) - self._zero) * self._scale, weight)

    def _rounded(self, x: Tensor) -> Tensor:
        """q_x as float: one pass less than rounding before the zero point is added, the same but for exact ties."""
        return torch.add(self._zero, x, alpha=1 / self._scale).round_().clamp_(0, self.activation_limit)

    def _as_program(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ops = torch.ops.quantized_decomposed
        how = (self._scale, self._zero, 0, self.activation_limit, torch.uint8)
        x = ops.dequantize_per_tensor.default(ops.quantize_per_tensor.default(x.float(), *how), *how)
        offset = torch.zeros_like(self.weight_scale, dtype=torch.int64)
        return x, ops.dequantize_per_channel.default(
            self.weight, self.weight_scale, offset, 0, -WEIGHT_LIMIT - 1, WEIGHT_LIMIT, torch.int8
        )

    def _pack(self) -> Tensor:
        raise NotImplementedError

    def _kernel(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _compute(self, x: Tensor, weight: Tensor) -> Tensor:
        raise NotImplementedError


_PLAIN = (1.0, 0, torch.float32, "none", [], "")  # float32 output, nothing fused after the product


class StaticConv2d(StaticInt8):
    """In place of nn.Conv2d with zero padding; any stride, dilation and groups."""

    def __init__(self, layer: nn.Conv2d, activation_bits: int):
        self._geometry = (list(layer.stride), list(layer.padding), list(layer.dilation), layer.groups)
        super().__init__(layer, activation_bits)

    def _pack(self) -> Tensor:
        return torch.ops.onednn.qconv_prepack(
            self.weight, self.weight_scale, self._scale, self._zero, *self._geometry, None
        )

    def _kernel(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        return torch.ops.onednn.qconv2d_pointwise(
            x, self._scale, self._zero, self._packed, self.weight_scale, self._no_offset, self.bias,
            *self._geometry, *_PLAIN,
        )  # fmt: skip

    def _compute(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, self.bias, *self._geometry)


class StaticLinear(StaticInt8):
    """In place of nn.Linear."""

    def _pack(self) -> Tensor:
        return torch.ops.onednn.qlinear_prepack(self.weight, None)

    def _kernel(self, x: Tensor) -> Tensor:
        return torch.ops.onednn.qlinear_pointwise(
            x.contiguous(),
            self._scale,
            self._zero,
            self._packed,
            self.weight_scale,
            self._no_offset,
            self.bias,
            *_PLAIN,
        )

    def _compute(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight, self.bias)


def static_layer(layer: nn.Conv2d | nn.Linear, activation_bits: int) -> StaticInt8:
    """The int8 layer that takes the place of a float one."""
    kind = StaticConv2d if isinstance(layer, nn.Conv2d) else StaticLinear
    return kind(layer, activation_bits)
