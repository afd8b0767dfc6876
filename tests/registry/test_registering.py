"""A trained model becomes one version that loads and draws with nothing but the package."""

import hashlib
import io
import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from PIL import Image

from shift_diffusion.config import ConfigError
from shift_diffusion.files import read_json, write_json
from shift_diffusion.registry import list_versions
from shift_diffusion.registry.loading import load_champion, load_model
from shift_diffusion.registry.measured import conditions, numbers
from shift_diffusion.registry.registering import register_model
from shift_diffusion.sampling import Pipeline
from shift_diffusion.serving.bundle import read_bundle
from shift_diffusion.tracking import TrackingError
from tests.registry.registry_builder import DEFAULTS, build_outs, small_params

NAME = "shift-diffusion"
FIXTURE = Path(__file__).parent / "fixtures" / "bundle-1"


def register(store, folder: Path, fid: float, num_samples: int = 32, **options):
    run = store.client.create_run(store.experiment_id)
    found = {"fid": fid}
    known = {"num_samples": num_samples}
    options = {"name": NAME, "metric": "fid", "metrics": found, "conditions": known, "defaults": DEFAULTS, **options}
    return register_model(store, run.info.run_id, folder / "models" / "stage-3", None, **options)


def picture_hashes(pictures) -> list[str]:
    return [hashlib.sha256(picture.numpy().tobytes()).hexdigest() for picture in pictures]


def test_registered_once_and_judged_again(store, outs, tmp_path):
    assert register(store, outs, 100.0).promote
    again = register(store, outs, 100.0)
    assert (again.version, again.promote) == (1, False)
    (only,) = list_versions(store, NAME)
    assert only.metrics == {"fid": 100.0}
    register(store, outs, 80.0, num_samples=64)
    (only,) = list_versions(store, NAME)
    assert only.metrics == {"fid": 80.0}
    assert only.candidate("fid").conditions == {"num_samples": "64"}
    build_outs(tmp_path, seed=1)
    other = register(store, tmp_path, 70.0, num_samples=64)
    assert (other.version, other.promote) == (2, True)


def test_pyfunc_draws_png_and_the_same_for_the_same_seed(store, outs):
    import mlflow.pyfunc

    register(store, outs, 100.0)
    files = Path(store.client.download_artifacts(list_versions(store, NAME)[0].run_id, "model"))
    assert not [path for path in files.rglob("*") if path.suffix in (".pkl", ".pt", ".pth", ".bin", ".joblib")]
    texts = [path.read_bytes().decode(errors="ignore") for path in files.rglob("*") if path.is_file()]
    named = {name for text in texts for name in re.findall(r"shift_diffusion\.[\w.]+", text)}
    assert named == {"shift_diffusion.serving.picture_model"}, "what else moves must not break old versions (case 33)"
    mlflow.set_tracking_uri(store.uri)
    mlflow.set_registry_uri(store.uri)
    model = mlflow.pyfunc.load_model(f"models:/{NAME}@champion")
    out = model.predict(pd.DataFrame({"seed": [3, 5]}), params={"num_steps": 2})
    other = model.predict(pd.DataFrame({"seed": [5, 3, 7]}), params={"num_steps": 2})
    assert list(out["picture"]) == [other["picture"][1], other["picture"][0]]
    image = Image.open(io.BytesIO(out["picture"][0]))
    assert image.size == (32, 32)
    assert image.text["seed"] == "3"
    assert image.text["num_steps"] == "2"
    assert list(model.predict(pd.DataFrame({"prompt": [""]}))["seed"]) == [0]
    names = [param.name for param in model.metadata.signature.params]
    assert names == ["num_steps", "sampler", "guidance_scale", "negative_prompt", "variant"]
    with pytest.raises(Exception, match="this model has no static_int8"):
        model.predict(pd.DataFrame({"seed": [1]}), params={"variant": "static_int8"})
    with pytest.raises(Exception, match="euler_a"):
        model.predict(pd.DataFrame({"seed": [1]}), params={"sampler": "euler_a"})


def test_the_champion_is_loaded_without_code_from_the_registry(store, outs):
    register(store, outs, 100.0)
    model = load_champion()
    assert model.label.startswith("shift-diffusion version 1 (")
    assert model.defaults == DEFAULTS
    direct = load_model(str(outs / "models" / "stage-3")).pipeline
    settings = {"sampler": "euler", "num_steps": 2}
    assert picture_hashes(model.pipeline.sample(None, [1, 2], **settings)) == picture_hashes(
        direct.sample(None, [1, 2], **settings)
    )


@pytest.mark.parametrize("variant", ["static_int8", "dynamic_int8", "weight_int8"])
def test_int8_variants_are_registered_and_draw_the_same_bits(store, outs, tmp_path, variant):
    """Case 25."""
    from shift_diffusion.models.saving import load_network
    from shift_diffusion.quantization.calibration import Inputs
    from shift_diffusion.quantization.quantize import convert
    from shift_diffusion.quantization.saving import save_quantized

    network, config = load_network(outs / "models" / "stage-3")
    seen = Inputs(torch.randn(4, 3, 32, 32), torch.linspace(-6, 6, 4), None, None)
    converted = convert(variant, network.requires_grad_(False), small_params().quantize, [seen])
    settings = {"sampler": "euler", "num_steps": 2}
    before = Pipeline(converted.network, config).sample(None, [1], **settings)
    save_quantized(tmp_path / "int8", variant, converted, config)
    run = store.client.create_run(store.experiment_id)
    options = {"name": NAME, "metric": "fid", "metrics": {"fid": 1.0}, "conditions": {}, "defaults": DEFAULTS}
    register_model(store, run.info.run_id, outs / "models" / "stage-3", tmp_path / "int8", **options)
    assert torch.equal(load_champion(variant=variant).pipeline.sample(None, [1], **settings), before)


def test_the_champion_of_a_moved_project_loads(project, store, outs, monkeypatch):
    """Case 35: the registry's paths are mended with the runs'."""
    register(store, outs, 100.0)
    moved = shutil.move(project, project.parent / "moved")
    monkeypatch.chdir(moved)
    assert load_champion().label.startswith("shift-diffusion version 1 (")
    assert not project.exists()


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("models:/shift-diffusion@champion", TrackingError),
        ("models:/shift-diffusion/3", TrackingError),
        ("models:/a/b/c", ConfigError),
        ("nowhere", ConfigError),
    ],
)
def test_models_that_are_not_there(store, address, error):
    with pytest.raises(error, match=address.removeprefix("models:/")):
        load_model(address)


def test_bundle_of_format_version_1_still_loads():
    model = load_model(str(FIXTURE))
    pictures = model.pipeline.sample(None, [0, 1], sampler="dpmpp_2m", num_steps=2)
    expected = json.loads((FIXTURE.parent / "bundle-1.json").read_text())["mean_of_channels"]
    found = pictures.float().mean(dim=(2, 3)).flatten().tolist()
    assert found == pytest.approx(expected, abs=0.5), "an old version must draw what it drew"


def test_unknown_format_version_is_refused(tmp_path):
    shutil.copytree(FIXTURE, tmp_path / "bundle")
    content = read_json(FIXTURE / "bundle.json")
    write_json(tmp_path / "bundle" / "bundle.json", {**content, "format_version": 99})
    with pytest.raises(ConfigError, match="format_version 99; this release reads 1"):
        read_bundle(tmp_path / "bundle")


def test_numbers_and_conditions(outs, params):
    found = numbers({"fid": 1, "flag": True, "note": "text"}, {"float32": {"latency_ms": {"batch1": 2.5}}})
    assert found == {"fid": 1.0, "benchmark.float32.latency_ms.batch1": 2.5}
    with pytest.raises(ConfigError, match="fid: '12.3' is text; a metric must be a number"):
        numbers({"fid": "12.3"}, {"static_int8": {"status": "not available: no C++ compiler"}})
    one = conditions(params.evaluate, {"num_samples": 32}, outs / "data" / "reference", outs / "models" / "stage-3")
    assert one["num_samples"] == "32"
    assert one["resolution"] == "32"
    assert one["reference"].endswith(".dir")
