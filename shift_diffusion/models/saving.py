"""A saved network: a folder with weights as safetensors and everything needed to rebuild it as JSON. No pickle."""

import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from shift_diffusion.config import ConfigError
from shift_diffusion.files import write_bytes_atomic, write_json
from shift_diffusion.models.unet import NestedUNet, network_from_config

FORMAT_VERSION = 1
WRAPPERS = ("_orig_mod.", "module.")  # of torch.compile and of data parallelism


def plain_state(network: nn.Module) -> dict[str, Tensor]:
    """Weights under their own names, without a wrapper's prefix, contiguous on the CPU."""
    state = {}
    for name, value in network.state_dict().items():
        while name.startswith(WRAPPERS):
            name = name.split(".", 1)[1]
        state[name] = value.detach().cpu().contiguous()
    return state


def save_network(folder: str | Path, network: nn.Module, config: dict, weights: str = "model.safetensors") -> None:
    """Writes `weights` and config.json into `folder`; each file is replaced as a whole.

    Args:
        network: a NestedUNet, wrapped or not. Call again with weights="raw.safetensors" for the unaveraged weights.
        config: JSON-able, with keys "network" (from `network_config`), "process", "text", "resolution".
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes_atomic(folder / weights, save(plain_state(network)))
    write_json(folder / "config.json", {"format_version": FORMAT_VERSION, **config})


def load_network(folder: str | Path, weights: str = "model.safetensors") -> tuple[NestedUNet, dict]:
    """The network in eval mode on the CPU, and its config.

    Raises:
        ConfigError: a file is missing or unreadable, the format is of another version, or a weight is missing,
            unexpected or of another shape; each is named.
    """
    folder = Path(folder)
    config = _read_config(folder / "config.json")
    network = network_from_config(config["network"])
    try:
        state = load_file(folder / weights)
    except (OSError, SafetensorError) as error:
        raise ConfigError([f"{folder / weights}: {error}"]) from error
    problems = state_problems(network, state)
    if problems:
        raise ConfigError([f"{folder / weights}: {problem}" for problem in problems])
    network.load_state_dict(state)
    return network.eval(), config


def state_problems(network: nn.Module, state: dict[str, Tensor]) -> list[str]:
    """One line for every weight that is missing, unexpected or of another shape."""
    own = network.state_dict()
    return [
        *(f"weight '{name}' is missing" for name in sorted(own.keys() - state.keys())),
        *(f"unexpected weight '{name}'" for name in sorted(state.keys() - own.keys())),
        *(
            f"weight '{name}' is {tuple(state[name].shape)}, the network needs {tuple(own[name].shape)}"
            for name in sorted(own.keys() & state.keys())
            if own[name].shape != state[name].shape
        ),
    ]


def _read_config(path: Path) -> dict:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError([f"{path}: {error}"]) from error
    version = config.get("format_version") if isinstance(config, dict) else None
    if version != FORMAT_VERSION:
        raise ConfigError([f"{path}: format_version {version!r}; this version reads {FORMAT_VERSION}"])
    if "network" not in config:
        raise ConfigError([f"{path}: key 'network' is missing"])
    return config
