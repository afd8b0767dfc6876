from typing import NamedTuple

import pytest
import torch

from shift_diffusion.process.bins import bins_of
from shift_diffusion.process.denoiser import Denoiser
from shift_diffusion.process.forward import target
from shift_diffusion.process.guidance import guide, join
from shift_diffusion.process.schedules import make_schedule


class Condition(NamedTuple):
    tokens: torch.Tensor
    mask: torch.Tensor
    pooled: torch.Tensor


def condition(length, seed, batch=2):
    generator = torch.Generator().manual_seed(seed)
    tokens, pooled = (torch.randn(*shape, generator=generator) for shape in ((batch, length, 4), (batch, 4)))
    return Condition(tokens, torch.ones(batch, length, dtype=torch.bool), pooled)


NULL = torch.tensor([0.3, -0.2, 0.1, 0.5])


class ConditionalNetwork:
    """Its prediction depends on the condition, or on the null embedding where `drop` says so; remembers its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, x_t, log_snr, text, drop):
        assert log_snr.dtype == torch.float32
        assert log_snr.shape == (len(x_t),)
        self.calls.append((len(x_t), None if drop is None else drop.tolist()))
        if text is None:
            signal = NULL.expand(len(x_t), 4)
        else:
            mean = (text.tokens * text.mask[..., None]).sum(1) / text.mask.sum(1, keepdim=True)
            signal = mean + text.pooled
            signal = signal if drop is None else torch.where(drop[:, None], NULL, signal)
        return x_t + signal.sum(1).view(-1, 1, 1, 1)


def denoiser(scale, text, **options):
    network = ConditionalNetwork()
    return Denoiser(network, make_schedule("flow"), "velocity", text, scale, **options), network


X = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))


def test_guide():
    c, u = torch.randn(2, 5)
    assert guide(c, u, 1.0) is c
    assert guide(c, u, 0.0) is u
    torch.testing.assert_close(guide(c, u, 3.0), u + 3 * (c - u))


def test_scale_one_is_the_conditional_prediction_to_the_bit_and_costs_one_evaluation():
    text = condition(3, 1)
    denoise, network = denoiser(1.0, text)
    found = denoise(X, 0.4)
    assert network.calls == [(2, None)]
    output = ConditionalNetwork()(X, make_schedule("flow").log_snr(torch.full((2,), 0.4)).float(), text, None)
    assert torch.equal(found, X - torch.tensor(0.4) * output)


def test_scale_zero_is_the_null_embedding_and_costs_one_evaluation():
    denoise, network = denoiser(0.0, condition(3, 1))
    unconditional, _ = denoiser(5.0, None)
    torch.testing.assert_close(denoise(X, 0.4), unconditional(X, 0.4))
    assert network.calls == [(2, [True, True])]


def test_scale_five_extrapolates_in_one_doubled_batch():
    text = condition(3, 1)
    denoise, network = denoiser(5.0, text)
    c, u = denoiser(1.0, text)[0](X, 0.4), denoiser(0.0, text)[0](X, 0.4)
    torch.testing.assert_close(denoise(X, 0.4), u + 5 * (c - u))
    assert network.calls == [(4, [False, False, True, True])]


def test_guided_estimates_do_not_depend_on_the_prediction_type():
    """Guidance of x_0 equals guidance of the raw outputs: all conversions are affine."""
    schedule, t = make_schedule("linear"), torch.tensor([0.3, 0.7], dtype=torch.float64)
    alpha, sigma = (f(t).float().view(-1, 1, 1, 1) for f in (schedule.alpha, schedule.sigma))
    text, pictures = condition(3, 1), torch.stack([torch.full_like(X, 0.2), torch.full_like(X, -0.4)])

    def network(prediction):
        def predict(x_t, log_snr, text, drop):
            x_0 = torch.where(drop.view(-1, 1, 1, 1), *pictures[:, :1].expand(2, len(x_t), -1, -1, -1))
            a, s = (c.repeat(2, 1, 1, 1) for c in (alpha, sigma))
            return target(prediction, x_0, (x_t - a * x_0) / s, a, s)

        return predict

    wanted = pictures[0] + 2 * (pictures[1] - pictures[0])
    for prediction in ("eps", "x0", "v"):
        found = Denoiser(network(prediction), schedule, prediction, text, 2.0)(X, t)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_no_condition_needs_no_guidance():
    denoise, network = denoiser(5.0, None)
    denoise(X, 0.4)
    assert network.calls == [(2, None)]


@pytest.mark.parametrize("length", [1, 3, 6])
def test_negative_condition_takes_the_place_of_the_null_embedding(length):
    text, negative = condition(3, 1), condition(length, 2)
    denoise, network = denoiser(3.0, text, negative=negative)
    c, n = denoiser(1.0, text)[0](X, 0.4), denoiser(1.0, negative)[0](X, 0.4)
    torch.testing.assert_close(denoise(X, 0.4), n + 3 * (c - n))
    assert network.calls == [(4, [False] * 4)]
    torch.testing.assert_close(denoiser(0.0, text, negative=negative)[0](X, 0.4), n)


def test_join_masks_the_padding():
    both = join(condition(2, 1), condition(4, 2))
    assert isinstance(both, Condition)
    assert both.tokens.shape == (4, 4, 4)
    assert both.mask.tolist() == [[True, True, False, False]] * 2 + [[True] * 4] * 2


def test_denoiser_takes_one_time_or_one_per_picture():
    denoise, _ = denoiser(1.0, condition(3, 1))
    torch.testing.assert_close(denoise(X, 0.4), denoise(X, torch.full((2,), 0.4, dtype=torch.float64)))
    mixed = denoise(X, torch.tensor([0.4, 0.9], dtype=torch.float64))
    torch.testing.assert_close(mixed[0], denoise(X, 0.4)[0])
    torch.testing.assert_close(mixed[1], denoise(X, 0.9)[1])


def test_clip_acts_after_guidance():
    denoise, _ = denoiser(5.0, condition(3, 1), clip=True)
    free, _ = denoiser(5.0, condition(3, 1))
    assert free(X, 0.9).abs().max() > 1
    assert torch.equal(denoise(X, 0.9), free(X, 0.9).clamp(-1, 1))


def test_bins_become_a_picture():
    x_0 = torch.linspace(-1, 1, 9)[torch.randint(9, (2, 3, 4, 4), generator=torch.Generator().manual_seed(0))]
    logits = torch.nn.functional.one_hot(bins_of(x_0, 9), 9).movedim(-1, 2).flatten(1, 2) * 50.0
    denoise = Denoiser(lambda *_: logits, make_schedule("flow"), "x0")
    torch.testing.assert_close(denoise(X, 0.5), x_0)


@pytest.mark.parametrize(
    ("schedule", "prediction", "allowed"),
    [
        (make_schedule("flow"), "eps", "velocity, x0"),
        (make_schedule("linear"), "velocity", "eps, x0, v"),
        (make_schedule("linear", zero_terminal_snr=True), "eps", "x0, v"),
    ],
)
def test_prediction_must_fit_the_schedule(schedule, prediction, allowed):
    with pytest.raises(ValueError, match=f"allowed: {allowed}"):
        Denoiser(ConditionalNetwork(), schedule, prediction)


@pytest.mark.parametrize("name", ["linear", "cosine", "flow"])
def test_both_ends_of_time_are_finite(name):
    schedule = make_schedule(name)
    for prediction in schedule.predictions:
        denoise = Denoiser(lambda x_t, *_: x_t, schedule, prediction)
        for t in (1.0, 1e-6, 0.0):
            assert denoise(X, t).isfinite().all()
