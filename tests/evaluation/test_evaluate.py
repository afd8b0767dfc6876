"""Reference and evaluation as the stages run them, on a few drawn faces and an untrained network."""

import json

import pytest
import torch
from PIL import Image

from shift_diffusion.config import ConfigError
from shift_diffusion.data.prepare import prepare_data
from shift_diffusion.data.store import PreparedData
from shift_diffusion.evaluation.caption_match import true_pictures
from shift_diffusion.evaluation.evaluate import Evaluation
from shift_diffusion.evaluation.features import EMBEDDED, Extractor
from shift_diffusion.evaluation.reference import Reference, build_reference
from shift_diffusion.files import read_json, write_json
from shift_diffusion.models.unet import build_network, network_config
from shift_diffusion.process.schedules import schedule_of
from shift_diffusion.sampling import Pipeline
from tests.conftest import tiny_params

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


def test_evaluation_writes_the_same_bytes_twice(project, tmp_path):
    params, data, root = project
    evaluation = Evaluation(model_of(params), params.evaluate, data, Reference.load(root / "reference"))
    metrics = [evaluation.run(tmp_path / name) for name in ("a", "b")]
    assert metrics[0] == metrics[1]
    write_json(tmp_path / "metrics.json", metrics[0])  # refuses what isn't finite
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
