"""Captions: dropped, missing, empty, padded, too long; for every style."""

import pytest
import torch

from shift_diffusion.models.conditioning import TextCondition, TextProjection
from shift_diffusion.models.unet import build_network
from shift_diffusion.process.denoiser import Denoiser
from shift_diffusion.process.forward import to_x0
from shift_diffusion.process.schedules import make_schedule
from tests.models.test_unet import inputs, overlay, shake, text_of

STYLES = ["flux", "qwen", "sdxl"]


@pytest.fixture(params=STYLES)
def network(request, tiny_params):
    return shake(build_network(tiny_params(overlay(style=request.param)), 2)).eval()


def outputs_differ(one, other):
    return (one - other).abs().amax((1, 2, 3)) > 1e-4


def test_dropped_captions_have_no_influence_and_kept_ones_do(network):
    x_t, log_snr, text = inputs(16)
    other = text_of(3)
    drop = torch.tensor([True, False, True])
    one, two = network(x_t, log_snr, text, drop), network(x_t, log_snr, other, drop)
    assert outputs_differ(one, two).tolist() == [False, True, False]
    kept = torch.zeros(3, dtype=torch.bool)
    assert outputs_differ(network(x_t, log_snr, text, kept), network(x_t, log_snr, other, kept)).all()
    torch.testing.assert_close(network(x_t, log_snr, text, kept), network(x_t, log_snr, text))


def test_null_embedding_is_the_same_in_training_and_sampling(network):
    x_t, log_snr, text = inputs(16)
    dropped = network(x_t, log_snr, text, torch.ones(3, dtype=torch.bool))
    torch.testing.assert_close(dropped, network(x_t, log_snr), atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        network.text.null.add_(1)
    assert outputs_differ(network(x_t, log_snr), dropped).all()
    torch.testing.assert_close(
        network(x_t, log_snr, text, torch.ones(3, dtype=torch.bool)), network(x_t, log_snr), atol=1e-5, rtol=1e-4
    )


def test_a_caption_without_tokens_is_the_null_embedding(network):
    x_t, log_snr, text = inputs(16)
    empty = text._replace(mask=torch.zeros_like(text.mask))
    torch.testing.assert_close(network(x_t, log_snr, empty), network(x_t, log_snr), atol=1e-5, rtol=1e-4)
    none_at_all = TextCondition(text.tokens[:, :0], text.mask[:, :0], text.pooled)
    torch.testing.assert_close(network(x_t, log_snr, none_at_all), network(x_t, log_snr), atol=1e-5, rtol=1e-4)


def test_padding_tokens_have_no_influence(network):
    x_t, log_snr, text = inputs(16)
    padded = TextCondition(
        torch.cat([text.tokens, 9 * torch.randn(3, 4, 384)], 1),
        torch.cat([text.mask, torch.zeros(3, 4, dtype=torch.bool)], 1),
        text.pooled,
    )
    torch.testing.assert_close(network(x_t, log_snr, padded), network(x_t, log_snr, text), atol=1e-5, rtol=1e-4)


def test_null_embedding_learns_only_from_dropped_captions(network):
    x_t, log_snr, text = inputs(16)
    for drop, learns in ((False, False), (True, True)):
        network.zero_grad()
        network(x_t, log_snr, text, torch.full((3,), drop)).square().mean().backward()
        grad = network.text.null.grad
        assert (grad is not None and bool(grad.abs().sum() > 0)) == learns


@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0])
@torch.no_grad()
def test_guidance_with_a_real_network(network, scale):
    """Case 9: 1 is the conditional prediction to the bit, 0 the null embedding's, 5 goes on in the same direction."""
    x_t, _, text = inputs(16)
    schedule = make_schedule("flow")
    t = torch.full((3,), 0.6, dtype=torch.float64)
    alpha, sigma, log_snr = schedule.alpha(t), schedule.sigma(t), schedule.log_snr(t).float()
    conditional = to_x0("velocity", network(x_t, log_snr, text), x_t, alpha, sigma)
    null = to_x0("velocity", network(x_t, log_snr), x_t, alpha, sigma)
    assert outputs_differ(conditional, null).all()
    found = Denoiser(network, schedule, "velocity", text, scale)(x_t, 0.6)
    if scale == 1:
        assert torch.equal(found, conditional)
    torch.testing.assert_close(found, null + scale * (conditional - null), atol=1e-4, rtol=1e-4)


def test_qwen_has_its_own_projection_for_every_position_and_refuses_longer_captions():
    projection = TextProjection("qwen", 8, 6, max_tokens=4)
    with torch.no_grad():
        projection.gain[2] = 3.0
    token = torch.randn(1, 1, 8).expand(1, 4, 8)
    text = TextCondition(token, torch.ones(1, 4, dtype=torch.bool), torch.randn(1, 8))
    tokens = projection(text, None, 1).tokens[0, 1:]
    assert not torch.allclose(tokens[2], tokens[1], atol=0.1)
    with pytest.raises(ValueError, match="at most 4"):
        projection(text_of(1, length=5, dim=8), None, 1)


def test_unconditional_network_refuses_text(tiny_params):
    network = build_network(tiny_params(overlay(style="none")), 1)
    x_t, log_snr, text = inputs(8)
    with pytest.raises(ValueError, match="unconditional"):
        network(x_t, log_snr, text)
    assert network(x_t, log_snr, None, torch.ones(3, dtype=torch.bool)).shape == x_t.shape


@pytest.mark.slow
@pytest.mark.parametrize("style", [*STYLES, "none"])
def test_every_style_learns(style, tiny_params):
    torch.manual_seed(0)
    network = build_network(tiny_params(overlay(style=style)), 2)
    optimizer = torch.optim.AdamW(network.parameters(), 3e-3)
    captions, targets = text_of(4), torch.randn(4, 3, 1, 1).expand(4, 3, 16, 16)
    losses = []
    for _ in range(150):
        index = torch.randint(0, 4, (8,))
        text = None if style == "none" else TextCondition(*(part[index] for part in captions))
        eps, log_snr = torch.randn(8, 3, 16, 16), 4 * torch.randn(8)
        alpha = torch.sigmoid(log_snr / 2).view(-1, 1, 1, 1)
        x_t = alpha * targets[index] + (1 - alpha) * eps
        loss = (network(x_t, log_snr, text, torch.rand(8) < 0.1) - (eps - targets[index])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-20:]) < 0.5 * sum(losses[:20])
