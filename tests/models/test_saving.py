"""A saved network comes back to the bit, and what isn't one is refused with a reason."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shift_diffusion.config import ConfigError
from shift_diffusion.models.saving import load_network, save_network
from shift_diffusion.models.unet import build_network, network_config
from tests.models.test_unet import inputs, shake


@pytest.fixture
def saved(tmp_path, tiny_params):
    network = shake(build_network(tiny_params(), 2))
    config = {"network": network_config(tiny_params(), 2), "process": {}, "text": {}, "resolution": 16}
    save_network(tmp_path / "model", network, config)
    return tmp_path / "model", network, config


def test_round_trip_to_the_bit(saved):
    folder, network, config = saved
    loaded, stored = load_network(folder)
    assert stored == json.loads(json.dumps({"format_version": 1, **config}))
    assert not loaded.training
    x_t, log_snr, text = inputs(16)
    with torch.no_grad():
        assert torch.equal(loaded(x_t, log_snr, text), network.eval()(x_t, log_snr, text))


def test_same_weights_give_the_same_bytes(saved, tmp_path):
    folder, network, config = saved
    save_network(tmp_path / "again", network, config)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("wrap", [torch.compile, lambda network: torch.nn.ModuleDict({"module": network})])
def test_second_set_of_weights_and_wrapped_networks(saved, wrap):
    """Case 16: torch.compile and data parallelism put a prefix before every name."""
    folder, network, config = saved
    wrapped = wrap(network)
    assert wrapped.state_dict().keys().isdisjoint(network.state_dict())
    save_network(folder, wrapped, config, weights="raw.safetensors")
    assert load_file(folder / "raw.safetensors").keys() == load_file(folder / "model.safetensors").keys()
    assert load_network(folder, "raw.safetensors")[0].spec == network.spec


def test_missing_unexpected_and_misshapen_weights_are_all_named(saved):
    folder, _, _ = saved
    state = load_file(folder / "model.safetensors")
    state["strange"] = torch.zeros(1)
    state["core.stem.bias"] = torch.zeros(3)
    del state["core.stem.weight"]
    save_file(state, folder / "model.safetensors")
    with pytest.raises(ConfigError) as error:
        load_network(folder)
    text = str(error.value)
    assert "'core.stem.weight' is missing" in text
    assert "unexpected weight 'strange'" in text
    assert "'core.stem.bias' is (3,)" in text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"format_version": 2, "network": {}}', "format_version 2"),
        ("{}", "format_version None"),
        ("[]", "format_version None"),
        ("{", "config.json"),
        ('{"format_version": 1}', "'network' is missing"),
    ],
)
def test_strange_config_is_refused(saved, content, reason):
    (saved[0] / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=reason):
        load_network(saved[0])


def test_missing_and_broken_files_are_refused(saved, tmp_path):
    folder, _, _ = saved
    with pytest.raises(ConfigError, match="config.json"):
        load_network(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="raw.safetensors"):
        load_network(folder, "raw.safetensors")
    (folder / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        load_network(folder)


@pytest.mark.parametrize("weights", ["model.safetensors", "raw.safetensors"])
def test_a_pickle_in_place_of_the_weights_is_refused_unread(saved, weights, tmp_path):
    """Case 14."""
    trap = tmp_path / "ran"

    class Trap:
        def __reduce__(self):
            return (Path.touch, (trap,))

    torch.save({"core.stem.weight": Trap()}, saved[0] / weights)
    with pytest.raises(ConfigError, match=weights):
        load_network(saved[0], weights)
    assert not trap.exists()
