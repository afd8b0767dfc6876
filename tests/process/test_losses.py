import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shift_diffusion.process.bins import bin_cross_entropy, bin_logits_to_x0, bins_of
from shift_diffusion.process.forward import add_noise, target, to_x0
from shift_diffusion.process.losses import DenoisingLoss, estimate_weight, gram_matrix, min_snr_weight, velocity_weight
from shift_diffusion.process.schedules import make_schedule

OFF = {
    "mse": 0.0,
    "l1": 0.0,
    "huber": 0.0,
    "huber_delta": 0.1,
    "cross_entropy": 0.0,
    "num_bins": 8,
    "min_snr_gamma": 0.0,
    "velocity_floor": 0.0,
    "perceptual": 0.0,
    "gram": 0.0,
    "perceptual_max_noise": 0.7,
}


def section(**values):
    return SimpleNamespace(**{**OFF, **values})


def batch(schedule, t=(0.05, 0.4, 0.75, 0.98)):
    generator = torch.Generator().manual_seed(0)
    x_0 = torch.rand(len(t), 3, 16, 16, generator=generator) * 2 - 1
    eps = torch.randn(x_0.shape, generator=generator)
    t = torch.tensor(t, dtype=torch.float64)
    alpha, sigma = schedule.alpha(t), schedule.sigma(t)
    return x_0, eps, add_noise(x_0, eps, alpha, sigma), alpha, sigma


def features_network():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.SiLU(), nn.Conv2d(8, 12, 3, padding=1))
    return network.eval().requires_grad_(False)


FLOW = make_schedule("flow")


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("mse", lambda a, b: F.mse_loss(a, b)),
        ("l1", lambda a, b: F.l1_loss(a, b)),
        ("huber", lambda a, b: F.huber_loss(a, b, delta=0.1)),
    ],
)
@pytest.mark.parametrize(("schedule", "prediction"), [(FLOW, "velocity"), (make_schedule("linear"), "v")])
def test_terms_on_the_target(schedule, prediction, name, reference):
    x_0, eps, x_t, alpha, sigma = batch(schedule)
    output = torch.randn_like(x_0)
    loss, terms = DenoisingLoss(section(**{name: 2.0}), prediction)(output, x_0, eps, x_t, alpha, sigma)
    wanted = target(prediction, x_0, eps, alpha, sigma)
    assert loss.shape == (4,)
    assert loss.dtype == torch.float32
    for k in range(4):
        assert terms[name][k].item() == pytest.approx(reference(output[k], wanted[k]).item(), rel=1e-5)
    torch.testing.assert_close(loss, 2 * terms[name])


def test_weights_add_up_and_terms_are_unweighted():
    x_0, eps, x_t, alpha, sigma = batch(FLOW)
    output = torch.randn_like(x_0)
    loss, terms = DenoisingLoss(section(mse=0.7, l1=0.2), "velocity")(output, x_0, eps, x_t, alpha, sigma)
    assert set(terms) == {"mse", "l1"}
    torch.testing.assert_close(loss, 0.7 * terms["mse"] + 0.2 * terms["l1"])


@pytest.mark.parametrize("losses", [{"mse": 1.0}, {"l1": 1.0}, {"huber": 1.0}, {"perceptual": 1.0}, {"gram": 1.0}])
@pytest.mark.parametrize(
    ("schedule", "prediction"),
    [(FLOW, "velocity"), (FLOW, "x0"), *((make_schedule("linear"), p) for p in ("eps", "v"))],
)
def test_the_truth_costs_nothing(schedule, prediction, losses):
    x_0, eps, x_t, alpha, sigma = batch(schedule)
    output = target(prediction, x_0, eps, alpha, sigma)
    loss, _ = DenoisingLoss(section(**losses), prediction, features_network())(output, x_0, eps, x_t, alpha, sigma)
    assert loss.abs().max() < 1e-6 + 1e-3 * bool(losses.get("perceptual"))
    output = (output + 0.3 * torch.randn_like(output)).requires_grad_()
    loss, _ = DenoisingLoss(section(**losses), prediction, features_network())(output, x_0, eps, x_t, alpha, sigma)
    assert (loss[:3] > 1e-12).all()
    loss.sum().backward()
    assert output.grad.isfinite().all()


def test_perceptual_loss_of_equal_pictures_is_exactly_zero():
    x_0, eps, x_t, alpha, sigma = batch(FLOW)
    loss = DenoisingLoss(section(perceptual=1.0, gram=1.0), "x0", features_network())
    assert torch.equal(loss(x_0, x_0, eps, x_t, alpha, sigma)[0], torch.zeros(4))


def test_perceptual_loss_sees_the_clamped_estimate_in_float32():
    """Case 10: on the estimate of x_0, not on the prediction, in [-1, 1], whatever the network's dtype and autocast."""
    seen, network = [], features_network()

    def features(x):
        seen.append(x.detach())
        assert not torch.is_autocast_enabled("cpu")
        return network(x)

    x_0, eps, x_t, alpha, sigma = batch(FLOW)
    output = (3 * torch.randn_like(x_0)).bfloat16()
    loss = DenoisingLoss(section(mse=0.7, perceptual=0.3), "velocity", features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total, terms = loss(output, x_0, eps, x_t, alpha, sigma)
    truth, estimate = seen
    assert estimate.dtype == truth.dtype == total.dtype == torch.float32
    assert torch.equal(truth, x_0)
    torch.testing.assert_close(estimate, to_x0("velocity", output.float(), x_t, alpha, sigma).clamp(-1, 1))
    wanted = (network(estimate) - network(x_0)).abs().flatten(1).mean(1)
    torch.testing.assert_close(terms["perceptual"], wanted)
    worth = torch.tensor([1.0, 1.0, 0.25 / 0.3, 0.02 / 0.3])
    torch.testing.assert_close(total, 0.7 * terms["mse"] + 0.3 * worth * wanted, rtol=1e-4, atol=1e-6)


def test_estimates_of_very_noisy_pictures_count_less():
    sigma = torch.tensor([0.0, 0.7, 0.85, 1.0])
    torch.testing.assert_close(estimate_weight(sigma, 0.7), torch.tensor([1.0, 1.0, 0.5, 0.0]))
    assert torch.equal(estimate_weight(sigma, 1.0), torch.ones(4))


def test_perceptual_network_gets_no_gradient_and_is_not_called_at_weight_zero():
    def forbidden(x):
        raise AssertionError("weight 0 must not evaluate the network")

    x_0, eps, x_t, alpha, sigma = batch(FLOW)
    loss = DenoisingLoss(section(mse=1.0), "velocity", forbidden)
    loss(torch.zeros_like(x_0), x_0, eps, x_t, alpha, sigma)
    assert loss.perceptual is None


def test_gram_matrix():
    features = torch.randn(2, 5, 4, 6)
    wanted = torch.einsum("bchw,bdhw->bcd", features, features) / (5 * 4 * 6)
    torch.testing.assert_close(gram_matrix(features), wanted)


@pytest.mark.parametrize("gamma", [1.0, 5.0])
def test_min_snr_by_prediction(gamma):
    """Hang et al. 2023: the factor that belongs to each prediction."""
    schedule, t = make_schedule("linear"), torch.linspace(0.001, 1, 50, dtype=torch.float64)
    alpha, sigma = schedule.alpha(t), schedule.sigma(t)
    snr = schedule.log_snr(t).exp()
    capped = snr.clamp(max=gamma)
    for prediction, wanted in {"x0": capped, "eps": capped / snr, "v": capped / (snr + 1)}.items():
        found = min_snr_weight(prediction, alpha, sigma, gamma)
        torch.testing.assert_close(found, wanted.float(), rtol=1e-5, atol=1e-7)
    alpha, sigma = FLOW.alpha(t), FLOW.sigma(t)
    wanted = (alpha / sigma).square().clamp(max=gamma) * sigma.square()
    torch.testing.assert_close(min_snr_weight("velocity", alpha, sigma, gamma), wanted.float())


@pytest.mark.parametrize(
    ("schedule", "predictions"),
    [
        (FLOW, ("velocity", "x0")),
        (make_schedule("linear"), ("eps", "x0", "v")),
        (make_schedule("cosine"), ("eps", "x0", "v")),
    ],
)
def test_min_snr_weighs_the_error_of_x0_alike_for_all_predictions(schedule, predictions):
    x_0, eps, x_t, alpha, sigma = batch(schedule, (0.05, 0.4, 0.75, 0.9))
    wrong = x_0 + 0.1 * torch.randn_like(x_0)
    values = []
    for prediction in predictions:
        output = target(
            prediction,
            wrong,
            (x_t - add_noise(wrong, eps * 0, alpha, sigma)) / sigma.float().view(-1, 1, 1, 1),
            alpha,
            sigma,
        )
        values.append(
            DenoisingLoss(section(mse=1.0, min_snr_gamma=5.0), prediction)(output, x_0, eps, x_t, alpha, sigma)[0]
        )
    for other in values[1:]:
        torch.testing.assert_close(other, values[0], rtol=1e-3, atol=1e-6)


def test_losses_are_finite_at_both_ends_of_time():
    for schedule in (FLOW, make_schedule("cosine"), make_schedule("linear", zero_terminal_snr=True)):
        x_0, eps, x_t, alpha, sigma = batch(schedule, (0.0, 1e-12, 1e-3, 1.0))
        for prediction in schedule.predictions:
            loss = DenoisingLoss(
                section(mse=1.0, l1=1.0, huber=1.0, min_snr_gamma=5.0, perceptual=1.0, gram=1.0),
                prediction,
                features_network(),
            )
            output = torch.randn_like(x_0).requires_grad_()
            values, _ = loss(output, x_0, eps, x_t, alpha, sigma)
            values.sum().backward()
            assert values.isfinite().all(), (schedule, prediction)
            assert output.grad.isfinite().all(), (schedule, prediction)


def test_huber_is_robust_to_outliers():
    x_0, eps, x_t, alpha, sigma = batch(FLOW)
    output = (eps - x_0).clone()
    output[:, :, 0, 0] += 100
    losses = {
        name: DenoisingLoss(section(**{name: 1.0}), "velocity")(output, x_0, eps, x_t, alpha, sigma)[0].mean()
        for name in ("mse", "huber")
    }
    assert losses["huber"] < losses["mse"] / 500


# Bins


def test_bins_reach_black_and_white():
    x_0 = torch.tensor([-1.3, -1.0, -0.01, 0.01, 1.0, 1.2]).view(1, 1, 1, 6)
    assert bins_of(x_0, 8).flatten().tolist() == [0, 0, 3, 4, 7, 7]
    for num_bins in (2, 8, 256):
        certain = torch.full((1, 3 * num_bins, 1, 1), -100.0)
        certain[:, num_bins - 1 :: num_bins] = 100.0
        torch.testing.assert_close(bin_logits_to_x0(certain, num_bins), torch.ones(1, 3, 1, 1))


def test_bin_channels_are_color_major():
    logits = torch.zeros(1, 3 * 4, 1, 1)
    logits[0, 1 * 4 + 3] = 50.0  # green, last bin
    assert bin_logits_to_x0(logits, 4).flatten().tolist() == pytest.approx([0, 1, 0], abs=1e-6)


def test_cross_entropy():
    x_0, eps, x_t, alpha, sigma = batch(FLOW)
    loss = DenoisingLoss(section(cross_entropy=1.0), "x0")
    uniform = torch.zeros(4, 3 * 8, 16, 16)
    torch.testing.assert_close(loss(uniform, x_0, eps, x_t, alpha, sigma)[0], torch.full((4,), math.log(8)))
    certain = F.one_hot(bins_of(x_0, 8), 8).movedim(-1, 2).flatten(1, 2) * 50.0
    assert loss(certain, x_0, eps, x_t, alpha, sigma)[0].max() < 1e-6
    by_hand = -torch.log_softmax(certain.view(4, 3, 8, 16, 16), 2).gather(2, bins_of(x_0, 8)[:, :, None])[:, :, 0]
    torch.testing.assert_close(bin_cross_entropy(certain, x_0, 8), by_hand)


def test_cross_entropy_joins_the_other_losses_on_its_estimate():
    x_0, eps, x_t, alpha, sigma = batch(FLOW)
    logits = torch.randn(4, 3 * 8, 16, 16).requires_grad_()
    loss = DenoisingLoss(section(cross_entropy=1.0, mse=0.5, perceptual=0.3), "x0", features_network())
    values, terms = loss(logits, x_0, eps, x_t, alpha, sigma)
    torch.testing.assert_close(terms["mse"], (bin_logits_to_x0(logits.detach(), 8) - x_0).square().flatten(1).mean(1))
    values.sum().backward()
    assert logits.grad.isfinite().all()


def test_cross_entropy_learns_a_two_colored_distribution():
    """A bin model can say "black or white": the mean alone, which mse learns, is neither."""
    generator = torch.Generator().manual_seed(0)
    x_0 = torch.randint(0, 2, (64, 1, 4, 4), generator=generator).expand(-1, 3, -1, -1) * 2.0 - 1
    logits = torch.zeros(1, 3 * 8, 1, 1, requires_grad=True)
    loss = DenoisingLoss(section(cross_entropy=1.0), "x0")
    optimizer = torch.optim.Adam([logits], lr=0.2)
    alpha = sigma = torch.full((64,), 0.5)
    for _ in range(100):
        optimizer.zero_grad()
        values, _ = loss(logits.expand(64, -1, 4, 4), x_0, x_0, x_0, alpha, sigma)
        values.mean().backward()
        optimizer.step()
    probabilities = logits.view(3, 8).softmax(1)
    torch.testing.assert_close(probabilities[:, [0, 7]].sum(1), torch.ones(3), rtol=0, atol=0.02)
    assert values.mean().item() == pytest.approx(math.log(2), abs=0.03)


@pytest.mark.parametrize(
    ("values", "prediction", "message"),
    [
        ({"perceptual": 0.3}, "velocity", "need a network of features"),
        ({"gram": 0.3}, "velocity", "need a network of features"),
        ({"cross_entropy": 1.0}, "v", "it must be x0"),
    ],
)
def test_refusals(values, prediction, message):
    with pytest.raises(ValueError, match=message):
        DenoisingLoss(section(**values), prediction)


def test_wrong_number_of_channels_of_logits():
    with pytest.raises(ValueError, match="can't hold 7 bins"):
        bin_logits_to_x0(torch.zeros(1, 24, 2, 2), 7)


@pytest.mark.parametrize("prediction", ["x0", "velocity"])
def test_velocity_weight_makes_every_prediction_a_velocity_loss(prediction):
    """The same estimate of x_0 costs the same, whichever way the network says it."""
    sigma = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    alpha = 1 - sigma
    error_of_x0 = torch.tensor([0.3, 0.2, 0.1], dtype=torch.float64)
    error_of_output = error_of_x0 if prediction == "x0" else error_of_x0 / sigma
    weighted = velocity_weight(prediction, alpha, sigma, 0.05) * error_of_output**2
    torch.testing.assert_close(weighted.double(), (error_of_x0 / sigma) ** 2, rtol=1e-6, atol=0)


def test_velocity_weight_is_bounded_by_its_floor():
    sigma = torch.tensor([1e-6, 0.05, 1.0])
    torch.testing.assert_close(velocity_weight("x0", 1 - sigma, sigma, 0.05), torch.tensor([400.0, 400.0, 1.0]))
