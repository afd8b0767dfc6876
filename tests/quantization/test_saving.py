"""Files: the same bits in a new process, no pickle, no float copies, and nothing loaded that doesn't fit."""

import hashlib
import json
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from shift_diffusion.config import ConfigError
from shift_diffusion.models.saving import save_network
from shift_diffusion.quantization import load_quantized
from shift_diffusion.quantization.saving import RECIPE, RECIPES, WEIGHTS, read_recipe, save_quantized
from tests.conftest import ROOT
from tests.quantization.conftest import make_config, make_inputs, make_network
from tests.quantization.test_recipes import convert

VARIANTS = tuple(RECIPES)


@pytest.fixture
def saved(tmp_path, network, batches):
    """Folder with all variants and, per variant, the network that was saved."""
    networks = {}
    for name in VARIANTS:
        converted = convert(name, network, batches)
        save_quantized(tmp_path, name, converted, make_config(network), note="from a test")
        networks[name] = converted.network
    return tmp_path, networks


LOADER = """
import sys, torch
from shift_diffusion.quantization import load_quantized
from tests.quantization.conftest import make_inputs
from safetensors.torch import save_file
torch.set_num_threads(1)
outputs = {name: load_quantized(sys.argv[1], name)[0](*make_inputs(seed=7)) for name in sys.argv[3:]}
save_file({name: output.contiguous() for name, output in outputs.items()}, sys.argv[2])
"""


def test_a_new_process_computes_the_same_bits(saved):
    folder, networks = saved
    out = folder / "outputs.safetensors"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOADER, str(folder), str(out), *VARIANTS], cwd=ROOT, check=True
    )
    outputs = load_file(out)
    torch.set_num_threads(1)
    for name, network in networks.items():
        assert torch.equal(outputs[name], network(*make_inputs(seed=7))), name


def test_files_hold_each_weight_once_and_int8_where_the_recipe_says_so(saved):
    folder, _ = saved
    for name in VARIANTS:
        state, recipe = load_file(folder / name / WEIGHTS), read_recipe(folder, name)
        assert recipe["about"] == {"note": "from a test"}
        for layer in recipe["int8_layers"]:
            assert state[f"{layer}.weight"].dtype == torch.int8
        assert {value.dtype for value in state.values()} <= {torch.int8, torch.int32, torch.float32, torch.float64}
        assert sorted(path.name for path in (folder / name).iterdir()) == [RECIPE, WEIGHTS]
        assert (folder / name / WEIGHTS).read_bytes()[8:9] == b"{"  # a safetensors header, not a pickle


def test_the_same_network_gives_the_same_bytes(tmp_path, network, batches):
    converted = convert("static_int8", network, batches)
    for place in ("one", "two"):
        save_quantized(tmp_path / place, "static_int8", converted, make_config(network))
    for file in (WEIGHTS, RECIPE):
        one, two = ((tmp_path / place / "static_int8" / file).read_bytes() for place in ("one", "two"))
        assert one == two


@pytest.mark.parametrize(("name", "share"), [("static_int8", 0.30), ("weight_int8", 0.30), ("dynamic_int8", 0.95)])
def test_the_file_is_smaller_than_the_float_one(tmp_path, name, share):
    """A quarter and the scales; dynamic_int8 keeps convolutions in float, and says so in the table of layers."""
    network = make_network(width=64)
    size = save_quantized(tmp_path, name, convert(name, network, [make_inputs()]), make_config(network))
    save_network(tmp_path / "float", network, make_config(network))
    assert size <= share * (tmp_path / "float" / "model.safetensors").stat().st_size


def _rewrite(path, change_state=lambda state: None, change_recipe=lambda recipe: None):
    """A file with changed content and a recipe.json that fits it: what a careful forger, or another release, writes."""
    with safe_open(path, framework="pt") as file:
        recipe = json.loads(file.metadata()["recipe"])
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change_state(state)
    change_recipe(recipe)
    save_file(state, path, metadata={"recipe": json.dumps(recipe, sort_keys=True)})
    path.with_name(RECIPE).write_text(json.dumps(recipe | {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}))


@pytest.mark.parametrize("name", VARIANTS)
def test_what_does_not_fit_is_named_and_refused(saved, name):
    folder, _ = saved
    path = folder / name / WEIGHTS
    original, copy = path.read_bytes(), path.with_name(RECIPE).read_text()
    cases = [
        ({"change_state": lambda state: state.pop("core.stem.weight")}, "'core.stem.weight' is missing"),
        ({"change_state": lambda state: state.update(extra=torch.zeros(1))}, "'extra' is unexpected"),
        ({"change_state": lambda state: state.update({"core.stem.bias": torch.zeros(5)})}, "core.stem.bias"),
        ({"change_recipe": lambda recipe: recipe["model"]["network"].update(widths=[24, 32])}, "the network needs"),
        ({"change_recipe": lambda recipe: recipe.update(format_version=99)}, "format_version 99"),
        ({"change_recipe": lambda recipe: recipe["int8_layers"].append("nowhere")}, "no layer 'nowhere'"),
        ({"change_recipe": lambda recipe: recipe.update(variant="other")}, "holds 'other'"),
    ]
    for change, message in cases:
        _rewrite(path, **change)
        with pytest.raises(ConfigError, match=message):
            load_quantized(folder, name)
        path.write_bytes(original)
        path.with_name(RECIPE).write_text(copy)
    load_quantized(folder, name)


def test_an_edited_recipe_or_a_broken_file_is_refused(saved):
    folder, _ = saved
    recipe, weights = folder / "static_int8" / RECIPE, folder / "static_int8" / WEIGHTS
    recipe.write_text(recipe.read_text().replace('"activation_bits": 7', '"activation_bits": 8'))
    with pytest.raises(ConfigError, match="does not belong"):
        load_quantized(folder)
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="weights.safetensors"):
        load_quantized(folder)
    with pytest.raises(ConfigError, match="nowhere"):
        load_quantized(folder / "nowhere")
    with pytest.raises(ConfigError, match="allowed: static_int8"):
        load_quantized(folder, "int4")
