"""One road of pictures into features, whatever they come as."""

import numpy as np
import pytest
import torch
import torch_fidelity
from PIL import Image

from shift_diffusion.config import ConfigError
from shift_diffusion.data.images import to_float, to_uint8
from shift_diffusion.evaluation.features import EMBEDDED, Extractor, read_pictures, register_embedded
from shift_diffusion.evaluation.frechet import FeatureStatistics, frechet_distance


@pytest.fixture(scope="module")
def extractor():
    return Extractor(EMBEDDED, batch_size=32)


def pictures(count, side=16, seed=0):
    """Blobs of color: something a network trained on photographs can tell apart."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
    scaled = [np.asarray(Image.fromarray(c).resize((side, side), Image.Resampling.BICUBIC)) for c in coarse]
    return torch.from_numpy(np.stack(scaled)).permute(0, 3, 1, 2)


def save_folder(folder, images, mode="RGB"):
    folder.mkdir(exist_ok=True)
    for number, image in enumerate(images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).convert(mode).save(folder / f"{number:03d}.png")
    return folder


def fid(a, b):
    return frechet_distance(FeatureStatistics.of(a), FeatureStatistics.of(b))


def test_the_same_pictures_by_file_by_tensor_and_by_float_are_at_distance_zero(extractor, tmp_path):
    images = pictures(40)
    reference = extractor(images)
    by_file, names = read_pictures(save_folder(tmp_path / "png", images), 16)
    assert len(names) == 40
    assert torch.equal(by_file, images)
    assert fid(extractor(by_file), reference) <= 1e-3
    assert fid(extractor(to_uint8(to_float(images))), reference) <= 1e-3
    assert fid(extractor(images.contiguous()), reference) <= 1e-3


def test_values_out_of_range_are_clamped_and_do_not_wrap_round():
    assert to_uint8(torch.tensor([-1.3, 1.2])).tolist() == [0, 255]


def test_torch_fidelity_gives_the_same_scores_from_the_same_folders(extractor, tmp_path):
    """Its own road: own decoder, own loader, the extractor registered with it, float64 matrix square root."""
    register_embedded()
    first, second = pictures(24, seed=1), pictures(24, seed=2)
    folders = [str(save_folder(tmp_path / name, images)) for name, images in (("a", first), ("b", second))]
    theirs = torch_fidelity.calculate_metrics(
        input1=folders[0], input2=folders[1], feature_extractor=EMBEDDED, fid=True, kid=True, prc=True,
        kid_subset_size=24, cuda=False, verbose=False, save_cpu_ram=True, cache=False,
    )  # fmt: skip
    a, b = extractor(first), extractor(second)
    assert fid(a, b) == pytest.approx(theirs["frechet_inception_distance"], rel=1e-3)


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 64])
def test_one_row_of_features_per_picture_for_every_count(extractor, count):
    images = pictures(count, side=8)
    found = extractor(images)
    assert found.shape == (count, 1280)
    torch.testing.assert_close(found[-1], extractor(images[-1:])[0], rtol=1e-3, atol=1e-3)


def test_no_pictures_and_wrong_types_are_refused(extractor):
    with pytest.raises(ValueError, match="no pictures"):
        extractor(pictures(1)[:0])
    with pytest.raises(TypeError, match="uint8"):
        extractor(to_float(pictures(2)))
    with pytest.raises(TypeError, match="N, 3, H, W"):
        extractor(pictures(2)[:, :1])


def test_a_folder_of_gray_and_mixed_pictures_is_read_as_rgb_of_one_size(tmp_path):
    folder = save_folder(tmp_path / "mixed", pictures(3), "L")
    Image.new("RGBA", (40, 20), (255, 0, 0, 128)).save(folder / "wide.png")
    (folder / ".hidden").write_text("not a picture")
    images, names = read_pictures(folder, 16)
    assert images.shape == (4, 3, 16, 16)
    assert images.dtype == torch.uint8
    assert torch.equal(images[0, 0], images[0, 2])
    assert names[-1] == "wide.png"


def test_unreadable_files_are_named_and_left_out_and_nothing_else_is_refused(tmp_path):
    folder = save_folder(tmp_path / "some", pictures(2))
    (folder / "broken.png").write_bytes(b"no picture")
    with pytest.warns(UserWarning, match="broken.png"):
        assert len(read_pictures(folder, 16)[0]) == 2


@pytest.mark.filterwarnings("ignore:.*left out")
def test_folders_without_a_readable_picture_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.png").write_bytes(b"")
    for name in ("empty", "bad"):
        with pytest.raises(ConfigError, match="no readable picture"):
            read_pictures(tmp_path / name, 16)
    with pytest.raises(ConfigError, match="not a folder"):
        read_pictures(tmp_path / "missing", 16)


def test_an_unknown_extractor_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=EMBEDDED):
        Extractor("resnet")


def test_weights_with_code_in_them_are_refused(tmp_path, monkeypatch):
    """torch-fidelity unpickles its weights without restriction: a file that isn't plain tensors must not reach it."""
    from shift_diffusion.evaluation import features

    class Harm:
        def __reduce__(self):
            return (print, ("harm done",))

    monkeypatch.setattr(torch.hub, "_get_torch_home", lambda: str(tmp_path))
    path = tmp_path / "hub" / "checkpoints" / features.INCEPTION_FILE
    path.parent.mkdir(parents=True)
    torch.save({"weight": Harm()}, path)
    with pytest.raises(ConfigError, match="plain tensors"):
        features.inception_weights()
