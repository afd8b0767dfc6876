"""The way around slow kernels changes the time only."""

import pytest
import torch
from torch import nn

from shift_diffusion.models.blocks import GroupNorm


@pytest.mark.parametrize("channels", [24, 32])  # 12 channels a group: the other layout; 16: whole vectors
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_pytorchs_and_keeps_the_layout(dtype, layout, channels):
    torch.manual_seed(0)
    ours, theirs = GroupNorm(2, channels), nn.GroupNorm(2, channels)
    for norm in (ours, theirs):
        nn.init.constant_(norm.weight, 1.5)
    x = torch.randn(3, channels, 6, 7).to(dtype).contiguous(memory_format=layout).requires_grad_()
    grad = torch.randn(3, channels, 6, 7).to(dtype)
    normed, expected = ours(x), theirs(x.float())
    assert normed.dtype == dtype
    assert normed.is_contiguous(memory_format=layout)
    tolerance = {"atol": 3e-2, "rtol": 2e-2} if dtype == torch.bfloat16 else {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(normed.float(), expected, **tolerance)
    found = torch.autograd.grad(normed, (x, *ours.parameters()), grad)
    wanted = torch.autograd.grad(expected, (x, *theirs.parameters()), grad.float())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.float(), other.float(), **tolerance)
