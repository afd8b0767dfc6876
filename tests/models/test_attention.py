"""Attention: in half precision it is the float32 one, rounded."""

import pytest
import torch

from shift_diffusion.models.blocks import attention


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("learning", [False, True])
def test_bfloat16_on_the_cpu_is_float32_rounded(learning, masked):
    """With gradients it runs in float32, whose backward is five times as fast; without, in bfloat16."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, length, 8, dtype=torch.bfloat16, requires_grad=learning) for length in (5, 7, 7))
    mask = torch.rand(2, 1, 1, 7) < 0.6 if masked else None
    with torch.autocast("cpu", torch.bfloat16):
        found = attention(q, k, v, mask)
    weights = q.double() @ k.double().mT / 8**0.5
    if masked:
        weights = weights.masked_fill(~mask, -torch.inf)
    exact = weights.softmax(-1) @ v.double()
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.double(), exact, atol=0.02)
    if learning:
        assert "ToCopy" in type(found.grad_fn).__name__  # the result was rounded after the fact
        for got, wanted in zip(
            torch.autograd.grad(found.sum(), (q, k, v)), torch.autograd.grad(exact.sum(), (q, k, v)), strict=True
        ):
            assert got.dtype == torch.bfloat16
            assert torch.allclose(got.double(), wanted.double(), atol=0.03)
