"""The FID arithmetic: closed forms, other implementations on the same features, and the edges of the bug reports."""

import numpy as np
import pytest
import torch
from torch_fidelity.metric_fid import KEY_METRIC_FID, fid_features_to_statistics, fid_statistics_to_metric

from shift_diffusion.evaluation.frechet import FeatureStatistics, frechet_distance


def features(count, size=64, seed=0, scale=1.0):
    """Correlated, as real features are: a decaying spectrum, a mean that isn't zero."""
    rng = torch.Generator().manual_seed(seed)
    mixing = torch.randn(size, size, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    decay = torch.logspace(0, -2, size, dtype=torch.float64)
    return scale * (torch.randn(count, size, generator=rng, dtype=torch.float64) * decay @ mixing + 1)


def fid(a, b):
    return frechet_distance(FeatureStatistics.of(a), FeatureStatistics.of(b))


def by_torch_fidelity(a, b):
    return fid_statistics_to_metric(fid_features_to_statistics(a), fid_features_to_statistics(b), False)[KEY_METRIC_FID]


def by_square_root(a, b):
    """The definition, with the root of a symmetric matrix: eigenvalues of A^(1/2) B A^(1/2) in float64."""
    c_a, c_b = (torch.from_numpy(np.cov(x.numpy(), rowvar=False)) for x in (a, b))
    values, vectors = torch.linalg.eigh(c_a)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    shared = torch.linalg.eigvalsh(root @ c_b @ root).clamp(min=0).sqrt().sum()
    return float((a.mean(0) - b.mean(0)).square().sum() + c_a.trace() + c_b.trace() - 2 * shared)


@pytest.mark.parametrize("counts", [(400, 300), (64, 65), (500, 40), (40, 30)])
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e-3])
def test_equals_torch_fidelity_and_the_definition_on_the_same_features(counts, scale):
    a, b = features(counts[0], seed=1, scale=scale), 1.1 * features(counts[1], seed=2, scale=scale)
    assert fid(a, b) == pytest.approx(by_torch_fidelity(a, b), rel=1e-3)
    assert fid(a, b) == pytest.approx(by_square_root(a, b), rel=1e-6)


def test_equals_pytorch_fid_on_the_same_features():
    fid_score = pytest.importorskip("pytorch_fid.fid_score")
    a, b = features(400, seed=1).numpy(), 1.1 * features(300, seed=2).numpy()
    theirs = fid_score.calculate_frechet_distance(
        a.mean(0), np.cov(a, rowvar=False), b.mean(0), np.cov(b, rowvar=False)
    )
    assert fid(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(theirs, rel=1e-3)


def test_closed_form_of_gaussians():
    """N(0, diag s^2) against N(m, diag r^2): |m|^2 + sum (s - r)^2. Factors stand for exact covariances."""
    s, r = torch.rand(2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5
    m = torch.linspace(-1, 1, 16, dtype=torch.float64)
    a = FeatureStatistics(11, torch.zeros_like(m), torch.diag(s) * 10**0.5)
    b = FeatureStatistics(26, m, torch.diag(r) * 25**0.5)
    assert frechet_distance(a, b) == pytest.approx(float(m.square().sum() + (s - r).square().sum()), rel=1e-12)


@pytest.mark.parametrize("size", [1280, 2048])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_forty_samples_of_many_features_are_fine(size, scale):
    rng = torch.Generator().manual_seed(0)
    a, b = (scale * torch.rand(40, size, generator=rng) for _ in range(2))
    distance = fid(a, b)
    assert isinstance(distance, float)
    assert distance > 0
    assert distance == pytest.approx(fid(b, a), rel=1e-9)
    assert fid(a, a) <= 1e-3
    assert distance == pytest.approx(by_torch_fidelity(a.double(), b.double()), rel=1e-3)


def test_one_picture_forty_times():
    copies, others = torch.rand(1, 256).expand(40, -1), torch.rand(50, 256)
    assert fid(copies, copies) == 0
    statistics = FeatureStatistics.of(others)
    expected = (copies[0].double() - statistics.mean).square().sum() + statistics.covariance_trace
    assert fid(copies, others) == pytest.approx(float(expected), rel=1e-9)


def test_a_set_against_itself_is_zero_with_rounded_and_shuffled_features():
    a = features(500).float()
    assert fid(a, a) <= 1e-3
    assert fid(a, a[torch.randperm(500)]) <= 1e-3


@pytest.mark.parametrize("batch", [1, 7, 64, 200, 500])
def test_streamed_statistics_are_those_of_all_features_at_once(batch):
    a, b = features(500, seed=3), features(300, seed=4)
    streamed = FeatureStatistics.of_batches(a.split(batch))
    whole = FeatureStatistics.of(a)
    assert streamed.count == 500
    assert streamed.factor.shape[0] <= 500
    torch.testing.assert_close(streamed.mean, whole.mean)
    torch.testing.assert_close(streamed.factor.T @ streamed.factor, whole.factor.T @ whole.factor)
    assert frechet_distance(streamed, FeatureStatistics.of(b)) == pytest.approx(fid(a, b), rel=1e-9)


def test_memory_of_streamed_statistics_is_bounded_by_the_features():
    streamed = FeatureStatistics.of_batches(torch.rand(10, 16) for _ in range(50))
    assert streamed.count == 500
    assert streamed.factor.shape == (16, 16)


@pytest.mark.parametrize(
    ("bad", "says"),
    [(torch.empty(0, 8), "n >= 1"), (torch.tensor([[1.0, float("nan")]]), "finite"), (torch.rand(3), "n >= 1")],
)
def test_refuses_what_has_no_statistics(bad, says):
    with pytest.raises(ValueError, match=says):
        FeatureStatistics.of(bad)


def test_refuses_one_sample_and_features_of_two_networks():
    with pytest.raises(ValueError, match="at least 2 samples"):
        fid(torch.rand(1, 8), torch.rand(5, 8))
    with pytest.raises(ValueError, match="different length"):
        fid(torch.rand(5, 8), torch.rand(5, 9))
