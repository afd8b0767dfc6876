"""The shift operator against its definition, per-channel grid_sample, and numerical derivatives."""

import pytest
import torch
from torch.nn import functional as F

from shift_diffusion.models import shift_chain
from shift_diffusion.models.shift import SpatialShift2d, _shift_by_slices, shift2d
from shift_diffusion.models.shift_convolution import convolve

SIZES = [(8, 8), (16, 16), (32, 32), (64, 64), (12, 20), (5, 3)]


def by_grid_sample(x, offset):
    """The same operator through a sampling grid per channel."""
    batch, channels, height, width = x.shape
    offset = offset.expand(batch, -1, -1).reshape(batch * channels, 2, 1, 1)
    rows, columns = torch.meshgrid(*(torch.arange(n, dtype=x.dtype) for n in (height, width)), indexing="ij")
    grid = [(columns - offset[:, 0]) * 2 / (width - 1) - 1, (rows - offset[:, 1]) * 2 / (height - 1) - 1]
    flat = x.reshape(batch * channels, 1, height, width)
    moved = F.grid_sample(flat, torch.stack(grid, -1), padding_mode="border", align_corners=True)
    return moved.view_as(x)


def random_offsets(shape, reach, dtype=torch.float32):
    return (torch.rand(*shape, 2, dtype=dtype) * 2 - 1) * reach


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("learning", [True, False])
def test_zero_offset_is_the_identity_to_the_bit(size, rows, learning):
    x = torch.randn(3, 4, *size, requires_grad=learning)
    assert torch.equal(shift2d(x, torch.zeros(rows, 4, 2), 2.0), x)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [1, 3])
def test_one_pixel_is_a_copy_with_repeated_border(size, rows):
    x = torch.randn(3, 2, *size)
    right = torch.cat([x[..., :1], x[..., :-1]], -1)
    up = torch.cat([x[..., 1:, :], x[..., -1:, :]], -2)
    assert torch.equal(shift2d(x, torch.tensor([1.0, 0.0]).expand(rows, 2, 2)), right)
    assert torch.equal(shift2d(x, torch.tensor([0.0, -1.0]).expand(rows, 2, 2)), up)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("reach", [1.0, 2.0, 2.5])
@pytest.mark.parametrize("rows", [1, 3])
def test_equals_grid_sample_for_fractional_offsets(size, reach, rows):
    torch.manual_seed(0)
    x, offset = torch.randn(3, 4, *size), random_offsets((rows, 4), reach)
    # grid_sample's normalized float32 coordinates are themselves only good to 1e-5 at 64 pixels, so it gets float64
    expected = by_grid_sample(x.double(), offset.double()).float()
    for moved in (
        shift2d(x, offset, reach),
        shift2d(x.requires_grad_(), offset, reach),
        _shift_by_slices(x, offset, int(reach + 0.9)),
    ):
        torch.testing.assert_close(moved, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("way", [convolve, shift_chain.ShiftFunction.apply, _shift_by_slices])
def test_every_way_and_its_gradients_equal_grid_sample(way, layout, rows, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(shift_chain, "CHUNK_BYTES", 2000)  # several chunks
    x = torch.randn(5, 4, 6, 7).contiguous(memory_format=layout).requires_grad_()
    offset, grad = random_offsets((rows, 4), 1.9).requires_grad_(), torch.randn(5, 4, 6, 7)
    ours, theirs = way(x, offset, 2), by_grid_sample(x, offset)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    ours, theirs = (torch.autograd.grad(moved, (x, offset), grad) for moved in (ours, theirs))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("reach", [1, 2])
def test_gradcheck_of_features_and_offsets(rows, reach):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    offset = random_offsets((rows, 3), reach, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda *inputs: shift2d(*inputs, float(reach)), (x, offset))
    assert torch.autograd.gradcheck(lambda *inputs: _shift_by_slices(*inputs, reach), (x, offset))


def test_gradcheck_of_gate_and_raw_offset():
    torch.manual_seed(0)
    shift = SpatialShift2d(3, 2.0, embedding_dim=4, init_scale=0.5).double()
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    names = ["raw", "gate.weight", "gate.bias"]

    def moved(embedding, *parameters):
        # relative_offsets rounds to float32, so the chain is checked in its own precision
        weights = dict(zip(names, parameters, strict=True))
        gate = 1 + F.linear(embedding, weights["gate.weight"], weights["gate.bias"])
        return shift2d(x, 2.0 * torch.tanh(weights["raw"] * gate.unsqueeze(-1)), 2.0)

    embedding = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    parameters = [shift.get_parameter(name) for name in names]
    assert torch.autograd.gradcheck(moved, (embedding, *parameters))
    torch.testing.assert_close(shift(x, embedding), moved(embedding, *parameters), atol=1e-5, rtol=1e-5)


def test_an_offset_of_zero_learns_from_both_sides():
    x = torch.arange(6.0).view(1, 1, 1, 6).expand(1, 1, 2, 6)
    for way in (shift2d, lambda x, offset: _shift_by_slices(x, offset, 1)):
        offset = torch.zeros(1, 1, 2, requires_grad=True)
        way(x, offset)[..., 1:-1].sum().backward()
        torch.testing.assert_close(offset.grad, torch.tensor([[[-8.0, 0.0]]]))


def test_layout_and_dtype_are_kept():
    x = torch.randn(2, 8, 6, 6)
    for rows in (1, 2):
        for layout in (torch.channels_last, torch.contiguous_format):
            moved = shift2d(x.contiguous(memory_format=layout), torch.full((rows, 8, 2), 0.3))
            assert moved.is_contiguous(memory_format=layout)
        assert shift2d(x.bfloat16(), torch.full((rows, 8, 2), 0.3)).dtype == torch.bfloat16


@pytest.mark.parametrize(("reach", "copies"), [(1.0, 1), (3.0, 0)])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_backward_keeps_at_most_one_copy_of_the_features(rows, reach, copies):
    saved = {}
    x = torch.randn(3, 8, 32, 32).contiguous(memory_format=torch.channels_last).requires_grad_()
    offset = random_offsets((rows, 8), 1.0).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.setdefault(t.data_ptr(), t), lambda t: t):
        shift2d(x, offset, reach)
    del saved[x.data_ptr()]  # lives anyway
    border, offsets = (34 / 32) ** 2, 60 * offset.numel()  # weights and kernels of some dozen taps
    assert sum(t.numel() for t in saved.values()) <= copies * border * x.numel() + offsets


def test_mixed_precision_keeps_the_dtype_of_the_features():
    with torch.autocast("cpu", torch.bfloat16):
        for rows in (1, 2):
            assert shift2d(torch.randn(2, 8, 6, 6), torch.full((rows, 8, 2), 0.3)).dtype == torch.float32


@pytest.mark.parametrize("shape", [(2, 4), (3, 4, 2), (2, 5, 2), (2, 4, 3)])
def test_offsets_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match="offset must be"):
        shift2d(torch.zeros(2, 4, 8, 8), torch.zeros(shape))


def test_offsets_stay_within_reach_and_zero_gate_is_the_identity():
    shift = SpatialShift2d(6, 3.0, embedding_dim=5, init_scale=1.0)
    x, embedding = torch.randn(2, 6, 8, 8), 100 * torch.randn(2, 5)
    torch.nn.init.normal_(shift.gate.weight)
    assert shift.relative_offsets(embedding).abs().max() <= 1
    assert not torch.equal(shift(x, embedding), x)
    with torch.no_grad():
        shift.gate.weight.zero_()
        shift.gate.bias.fill_(-1)
    assert torch.equal(shift(x, embedding), x)


def test_initial_scale_bounds_the_first_offsets():
    shift = SpatialShift2d(64, 2.0, init_scale=0.25)
    assert 0.2 < shift.relative_offsets(None).abs().max() <= 0.25
    assert SpatialShift2d(64, 2.0).penalty() == 0
    assert shift.penalty() > 0


def test_compiled_or_traced_gives_the_same():
    x, offset = torch.randn(2, 4, 8, 8), random_offsets((2, 4), 1.0)
    exported = torch.export.export(_Shift(), (x, offset)).module()
    torch.testing.assert_close(exported(x, offset), shift2d(x, offset))


class _Shift(torch.nn.Module):
    def forward(self, x, offset):
        return shift2d(x, offset)
