"""KID, precision and recall by torch-fidelity, and sets too small for what was asked."""

import pytest
import torch
from torch_fidelity.metric_kid import KEY_METRIC_KID_MEAN, kid_features_to_metric
from torch_fidelity.metric_prc import prc_features_to_metric

from shift_diffusion.config import ConfigError
from shift_diffusion.evaluation.frechet import FeatureStatistics
from shift_diffusion.evaluation.metrics import KID_SUBSETS, mean_and_spread, scores

pytestmark = pytest.mark.filterwarnings("ignore:.*compare this FID only")


def draw(count, shift=0.0, size=24, seed=0):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed)) + shift


def against(generated, real, subset=1000):
    return scores(generated, real, FeatureStatistics.of(real), subset)


def test_equal_torch_fidelity_on_the_same_features():
    generated, real = draw(120, 0.2, seed=1), draw(150, seed=2)
    found = against(generated, real, 100)
    kid = kid_features_to_metric(
        generated.double(), real.double(), kid_subsets=KID_SUBSETS, kid_subset_size=100, rng_seed=0, verbose=False
    )
    prc = prc_features_to_metric(generated, real, verbose=False)
    assert found["kid"] == pytest.approx(kid[KEY_METRIC_KID_MEAN], rel=1e-3)
    assert found["precision"] == pytest.approx(prc["precision"], abs=1e-6)
    assert found["recall"] == pytest.approx(prc["recall"], abs=1e-6)


def test_kid_equals_its_definition_when_the_subset_is_the_set():
    """Binkowski et al. 2018, eq. 4: the unbiased squared MMD with the kernel (x y / d + 1)^3."""
    a, b = draw(60, 0.3, seed=1).double(), draw(60, seed=2).double()

    def kernel(x, y):
        return (x @ y.T / x.shape[1] + 1) ** 3

    k_a, k_b = kernel(a, a), kernel(b, b)
    expected = (k_a.sum() - k_a.trace() + k_b.sum() - k_b.trace()) / (60 * 59) - 2 * kernel(a, b).mean()
    assert against(a.float(), b.float(), 60)["kid"] == pytest.approx(float(expected), rel=1e-4)


def test_precision_and_recall_know_invention_from_collapse():
    real = draw(200, seed=1)
    invented = torch.cat([draw(100, seed=2), draw(100, 9.0, seed=3)])
    collapsed = real[:1] + 0.01 * draw(200, seed=4)
    assert against(invented, real)["precision"] < 0.6
    assert against(collapsed, real)["precision"] > 0.9
    assert against(collapsed, real)["recall"] < 0.1


@pytest.mark.parametrize("count", [2, 3, 31, 32, 33, 40, 64])
def test_every_number_of_samples_gives_finite_scores(count):
    found = against(draw(count, seed=1), draw(48, seed=2))
    assert all(torch.isfinite(torch.tensor(float(value))) for value in found.values())
    assert found["kid_subset_size"] == min(count, 48)
    assert found["few_samples"] == int(count < 24)
    assert found["fid"] >= 0


@pytest.mark.parametrize(("generated", "real"), [(0, 40), (1, 40), (40, 1), (40, 0)])
def test_too_small_sets_are_refused_in_words(generated, real):
    statistics = FeatureStatistics.of(draw(40))
    with pytest.raises(ConfigError, match="need at least 2"):
        scores(draw(generated), draw(real), statistics, 1000)


@pytest.mark.filterwarnings("default:.*compare this FID only")
def test_fewer_samples_than_features_are_said():
    with pytest.warns(UserWarning, match="10 samples for 24 features"):
        against(draw(10), draw(40, seed=1))


def test_mean_and_spread_over_seeds():
    found = mean_and_spread([{"fid": 10.0, "kid": 1.0}, {"fid": 14.0, "kid": 1.0}])
    assert found == {"fid": 12.0, "kid": 1.0, "fid_std": pytest.approx(8**0.5), "kid_std": 0.0}
    assert mean_and_spread([{"fid": 10.0}]) == {"fid": 10.0}
