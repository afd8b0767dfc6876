"""Reference and evaluation as the stages run them, on a few drawn faces and an untrained network."""

import json
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from shift_diffusion.config import ConfigError
from shift_diffusion.data.images import to_float, to_uint8
from shift_diffusion.data.prepare import prepare_data
from shift_diffusion.data.store import PreparedData
from shift_diffusion.evaluation.caption_match import true_pictures
from shift_diffusion.evaluation.evaluate import Evaluation
from shift_diffusion.evaluation.features import EMBEDDED, Extractor, read_pictures
from shift_diffusion.evaluation.frechet import FeatureStatistics, frechet_distance
from shift_diffusion.evaluation.reference import Reference, build_reference
from shift_diffusion.evaluation.samples import draw_samples
from shift_diffusion.files import read_json, write_json
from shift_diffusion.models.unet import build_network, network_config
from shift_diffusion.pictures import save_png, to_pil
from shift_diffusion.process.schedules import schedule_of
from shift_diffusion.sampling import Pipeline
from tests.conftest import merge, tiny_params

pytestmark = pytest.mark.filterwarnings("ignore:.*compare this FID only")

OVERLAY = {
    "data": {"source": "avatars", "num_images": 40, "validation_fraction": 0.3, "workers": 1},
    "text": {"encoder": "none"},
    "conditioning": {"style": "none"},
    "evaluate": {"num_samples": 6, "num_steps": 2, "batch_size": 4, "sampler_steps": [1]},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    params, root = tiny_params(OVERLAY), tmp_path_factory.mktemp("evaluated")
    prepare_data(params.data, params.text, [8, 16, 32], root / "prepared")
    data = PreparedData.open(root / "prepared")
    build_reference(data, 32, Extractor(EMBEDDED), root / "reference")
    return params, data, root


def model_of(params):
    torch.manual_seed(0)
    process = {**schedule_of(params.process, params.train.stage_3).settings(), "prediction": params.process.prediction}
    config = {
        "network": network_config(params, 3),
        "process": process,
        "text": params.text.model_dump(),
        "resolution": 32,
    }
    return Pipeline(build_network(params, 3).eval(), config)


def test_reference_is_whole_and_keyed_by_the_data(project):
    params, data, root = project
    reference = Reference.load(root / "reference")
    assert reference.content_hash == data.content_hash
    for split in ("train", "validation"):
        assert reference.features[split].shape == (len(data.split(split)), 1280)
        assert reference.statistics[split].count == len(data.split(split))
    assert "content_hash" in json.loads((root / "reference" / "info.json").read_text())


def test_a_reference_of_other_data_or_format_is_refused(project, tmp_path):
    params, data, root = project
    other = Reference(**{**vars(Reference.load(root / "reference")), "content_hash": "another"})
    model = model_of(params)
    with pytest.raises(ConfigError, match="dvc repro reference"):
        Evaluation(model, params.evaluate, data, other)
    write_json(tmp_path / "info.json", {**read_json(root / "reference" / "info.json"), "format_version": 99})
    with pytest.raises(ConfigError, match="99"):
        Reference.load(tmp_path)


def test_changed_data_ask_for_a_new_reference(project, tmp_path):
    _, _, root = project
    fewer = tiny_params(merge(OVERLAY, {"data": {"num_images": 39}}))
    prepare_data(fewer.data, fewer.text, [8, 16, 32], tmp_path / "prepared")
    data, reference = PreparedData.open(tmp_path / "prepared"), Reference.load(root / "reference")
    with pytest.raises(ConfigError, match="made of other data than data/prepared"):
        Evaluation(model_of(fewer), fewer.evaluate, data, reference)


@pytest.mark.parametrize("road", ["as prepared", "as floats", "as files"])
def test_the_real_pictures_are_at_distance_zero_from_their_own_reference(project, tmp_path, road):
    """Case 22: the reference has taken the same road as whatever is compared with it."""
    _, data, root = project
    pictures = data.batch(data.split("train"), 32)
    if road == "as floats":
        pictures = to_uint8(to_float(pictures))
    if road == "as files":
        for number, picture in enumerate(pictures):
            save_png(to_pil(picture), tmp_path / f"{number:03d}.png")
        pictures, _ = read_pictures(tmp_path, 32)
    found = FeatureStatistics.of(Extractor(EMBEDDED, batch_size=7)(pictures))
    assert frechet_distance(found, Reference.load(root / "reference").statistics["train"]) <= 1e-3


@pytest.mark.parametrize("count", [2, 31, 32, 33, 64])
def test_exactly_as_many_pictures_as_asked_for_are_drawn_and_scored(project, count):
    """Case 23: full, nearly full and barely begun batches of 32."""
    _, data, root = project
    section = {"num_samples": count, "num_steps": 1, "batch_size": 32, "kid_subset_size": 1000}
    params = tiny_params(merge(OVERLAY, {"evaluate": section}))
    evaluation = Evaluation(model_of(params), params.evaluate, data, Reference.load(root / "reference"))
    samples = draw_samples(evaluation.model, params.evaluate, data, 0)
    assert len(samples.pictures) == len(set(samples.seeds)) == count
    found = evaluation.measure(samples, evaluation.extractor(samples.pictures))
    assert found["kid_subset_size"] == min(count, len(data.split("train")))
    assert torch.isfinite(torch.tensor(list(found.values()))).all()


def test_too_few_pictures_are_refused_before_any_work(tmp_path):
    for section in ("evaluate", "quantize"):
        with pytest.raises(ConfigError, match=f"{section}.num_samples: 1; .* at least 2"):
            tiny_params({section: {"num_samples": 1}})
    alone = SimpleNamespace(split=lambda name: range(5 if name == "train" else 1))
    with pytest.raises(ConfigError, match="data, validation split: 1 pictures"):
        build_reference(alone, 32, None, tmp_path / "reference")


def test_a_network_that_gives_nan_has_no_score(project, tmp_path):
    """Case 31: the stage fails; no file holds a number that stands for a failure."""
    params, data, root = project
    model = model_of(params)
    torch.nn.init.constant_(next(model.network.parameters()), float("nan"))
    with pytest.raises(ValueError, match="aren't finite"):
        Evaluation(model, params.evaluate, data, Reference.load(root / "reference")).run(tmp_path)
    assert not list(tmp_path.iterdir())


def test_evaluation_writes_the_same_bytes_twice(project, tmp_path):
    params, data, root = project
    evaluation = Evaluation(model_of(params), params.evaluate, data, Reference.load(root / "reference"))
    metrics = [evaluation.run(tmp_path / name)[0] for name in ("a", "b")]
    assert metrics[0] == metrics[1]
    write_json(tmp_path / "metrics.json", metrics[0])  # refuses what isn't finite
    assert (metrics[0]["few_samples"], metrics[0]["kid_subset_size"], metrics[0]["num_samples"]) == (1, 6, 6)
    for name in ("fid", "kid", "precision", "recall"):
        assert {f"{name}_{EMBEDDED}", f"{name}_{EMBEDDED}_std", f"{name}_floor_{EMBEDDED}"} <= metrics[0].keys()
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len([path for path in files if path.parts[0] == "samples"]) == 6
    assert {"grid.png", "trajectory.png", "neighbors.png", "spectrum.png", "psnr.png", "fid_vs_steps.csv"} <= {
        str(path) for path in files
    }
    for path in files:
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes(), path
    assert Image.open(tmp_path / "a" / "samples" / "00000003.png").text["seed"] == "3"


def test_true_pictures_are_drawn_for_full_captions_only(project):
    _, data, _ = project
    indices = torch.from_numpy(data.split("validation"))
    places, pictures = true_pictures(data, indices, 32)
    full = [k for k, row in enumerate(indices.tolist()) if data.captions[row] == data.full_captions[row]]
    assert places.tolist() == full
    assert pictures.shape == (len(full), 3, 32, 32)
    held_out = data.batch(indices[places], 32).float()
    assert (pictures.float() - held_out).abs().mean() < 3  # the same face by two ways of scaling
