"""Muon: orthogonal updates, the right parameters, and the same as AdamW elsewhere."""

import pytest
import torch
from torch import nn

from shift_diffusion.training.muon import Muon, orthogonalize


def _network():
    torch.manual_seed(0)
    return nn.ModuleDict({"stem": nn.Conv2d(3, 16, 3), "middle": nn.Conv2d(16, 24, 3), "head": nn.Conv2d(24, 3, 3)})


def test_orthogonalize_brings_singular_values_near_one():
    torch.manual_seed(1)
    for shape in ((2, 16, 144), (1, 144, 16), (3, 24, 24)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
        assert values.median() > 0.6
        assert values.max() < 1.3


def test_orthogonalize_keeps_the_directions():
    torch.manual_seed(2)
    u, _, v = torch.linalg.svd(torch.randn(1, 12, 40), full_matrices=False)
    spectrum = torch.linspace(0.5, 1, 12)
    found = orthogonalize(u * spectrum @ v)
    torch.testing.assert_close(u.mT @ found @ v.mT, torch.eye(12)[None], atol=0.35, rtol=0)


def test_hidden_matrices_only():
    network = _network()
    optimizer = Muon(network, (0.9, 0.99), 0.0, fused=True)
    assert optimizer.moment_names(network["middle"].weight) == ("exp_avg",)
    for p in (network["middle"].bias, network["stem"].weight, network["head"].weight):
        assert optimizer.moment_names(p) == ("exp_avg", "exp_avg_sq")


def test_the_rest_is_updated_as_by_adamw():
    ours, theirs = _network(), _network()
    muon = Muon(ours, (0.9, 0.99), 0.1, fused=False)
    adamw = torch.optim.AdamW(
        [
            {"params": [theirs["stem"].weight], "weight_decay": 0.1},
            {"params": [theirs["stem"].bias], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.99),
    )
    for optimizer in (muon, adamw):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2
    x = torch.randn(4, 3, 12, 12)
    for _ in range(3):
        for network, optimizer in ((ours, muon), (theirs, adamw)):
            optimizer.zero_grad()
            network["stem"](x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(ours["stem"].weight, theirs["stem"].weight)
    torch.testing.assert_close(ours["stem"].bias, theirs["stem"].bias)


def test_update_size_does_not_depend_on_the_gradient_scale():
    steps = []
    for scale in (1.0, 1e3):
        network = _network()
        optimizer = Muon(network, (0.9, 0.99), 0.0, fused=True)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2
        before = network["middle"].weight.detach().clone()
        torch.manual_seed(3)
        (network["middle"](torch.randn(4, 16, 6, 6)).square().mean() * scale).backward()
        optimizer.step()
        steps.append(network["middle"].weight.detach() - before)
    torch.testing.assert_close(steps[0], steps[1], atol=1e-5, rtol=1e-3)
    assert 0.5 < steps[0].square().mean().sqrt() / (1e-2 * 0.2) < 1.5


@pytest.mark.parametrize("shape", [(8, 72), (24, 8), (16, 16)])
def test_orthogonalize_is_the_iteration_of_its_source(shape):
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    assert torch.allclose(orthogonalize(matrices), x, atol=1e-6)
