"""Spectrum, color, neighbors, caption match and PSNR: known answers."""

import pytest
import torch

from shift_diffusion.data.images import to_float
from shift_diffusion.evaluation.appearance import appearance
from shift_diffusion.evaluation.caption_match import caption_match
from shift_diffusion.evaluation.neighbors import memorization, nearest
from shift_diffusion.evaluation.psnr import LOG_SNR_LEVELS, psnr, psnr_by_noise_level
from shift_diffusion.evaluation.spectrum import high_frequency_ratio, power_spectrum
from shift_diffusion.process.schedules import make_schedule


def noise(count, side=32, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, side, side), generator=rng, dtype=torch.uint8)


@pytest.mark.parametrize("cycles", [2, 5, 11])
def test_a_wave_has_its_power_at_its_own_frequency(cycles):
    wave = torch.cos(2 * torch.pi * cycles * torch.arange(32) / 32)
    images = ((wave.expand(1, 3, 32, 32) + 1) * 127).to(torch.uint8)
    assert power_spectrum(images).argmax() == cycles - 1


def test_spectrum_of_white_noise_is_flat_and_a_set_is_as_sharp_as_itself():
    spectrum = power_spectrum(noise(200))
    assert spectrum.shape == (16,)
    assert spectrum.max() < 1.5 * spectrum[2:].mean()
    assert high_frequency_ratio(spectrum, spectrum) == 1
    flat = power_spectrum(torch.full((2, 3, 32, 32), 7, dtype=torch.uint8))
    assert high_frequency_ratio(flat, spectrum) < 1e-6


def test_color_of_known_pictures():
    red = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    red[:, 0] = 255
    assert appearance(red) == pytest.approx(
        {"brightness": 1 / 3, "contrast": 0, "saturation": 1, "hue_spread": 0, "variety": 0}, abs=1e-6
    )
    thirds = torch.cat([red.roll(k, 1) for k in range(3)])
    assert appearance(thirds)["hue_spread"] == pytest.approx(1, abs=1e-6)
    assert appearance(thirds)["variety"] == pytest.approx(2**0.5 / 3, abs=1e-6)
    gray = torch.full((2, 3, 8, 8), 100, dtype=torch.uint8)
    assert appearance(gray)["saturation"] == appearance(gray)["hue_spread"] == 0


def test_copies_of_training_pictures_are_found_and_unseen_ones_are_not_accused():
    rng = torch.Generator().manual_seed(0)
    train, held_out, unseen = (torch.randn(n, 16, generator=rng) for n in (300, 200, 200))
    assert torch.equal(nearest(train[5:9], train).index, torch.arange(5, 9))
    assert memorization(train[:50], held_out, train)["memorized_share"] == 1
    assert memorization(unseen, held_out, train)["memorized_share"] < 0.05


def test_caption_match_is_one_for_the_true_pictures_and_a_tenth_by_chance():
    rng = torch.Generator().manual_seed(0)
    true = torch.randn(400, 8, generator=rng)
    captions = [f"caption {k}" for k in range(400)]
    assert caption_match(true + 0.01, true, captions) == 1
    assert caption_match(torch.randn(400, 8, generator=rng), true, captions) == pytest.approx(0.1, abs=0.06)


def test_equal_captions_are_no_rivals_and_ten_captions_are_the_least():
    true = torch.eye(10).repeat(3, 1)
    captions = [f"caption {k}" for k in range(10)] * 3
    assert caption_match(true, true, captions) == 1
    with pytest.raises(ValueError, match="10 different captions"):
        caption_match(true[:9], true[:9], captions[:9])


def test_psnr_of_a_known_error():
    x_0 = torch.zeros(2, 3, 8, 8)
    torch.testing.assert_close(psnr(x_0 + 0.2, x_0), torch.full((2,), 20.0, dtype=torch.float64))
    assert torch.isfinite(psnr(x_0, x_0)).all()


@pytest.mark.parametrize("schedule", [make_schedule("flow", timestep_shift=3.0), make_schedule("cosine")])
def test_psnr_by_noise_level_meets_the_same_noise_with_every_schedule(schedule):
    """Doing nothing but rescaling leaves sigma / alpha = exp(-log_snr / 2) of noise: clamping apart, known decibels."""
    images = torch.full((6, 3, 16, 16), 127, dtype=torch.uint8)

    def denoise_of(part):
        return lambda x_t, t: x_t / float(schedule.alpha(t))

    found = psnr_by_noise_level(denoise_of, images, schedule, batch_size=4)
    assert list(found) == list(LOG_SNR_LEVELS)
    # at log-SNR 4 the noise, 0.135, is never clamped
    assert found[4.0] == pytest.approx(10 * torch.log10(torch.tensor(4 / torch.tensor(-4.0).exp())).item(), abs=0.15)
    perfect = psnr_by_noise_level(lambda part: lambda x_t, t: to_float(images[part]), images, schedule, batch_size=4)
    assert min(perfect.values()) > 100
