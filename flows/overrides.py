"""`--set KEY=VALUE`: changes params.yaml, after checking the result, before any work.

The file itself is changed (its comments and layout stay), as `dvc exp run -S` does it: params.yaml always
says what the outs in the workspace were made with, and `git diff` shows the change.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from shift_diffusion.config import ConfigError, Params, parse_params, read_yaml


def check(path: Path, assignments: list[str]) -> Params:
    """Validates params.yaml as it would be with the assignments in place; writes nothing.

    Raises:
        ConfigError: one line per problem.
    """
    content = read_yaml(path)
    for keys, value in map(parse_assignment, assignments):
        _assign(content, keys, value)
    return parse_params(content, source="params.yaml with --set" if assignments else str(path))


def apply(path: Path, assignments: list[str]) -> Params:
    """Validates as `check` does, then writes params.yaml if an assignment changes it."""
    params = check(path, assignments)
    if params != _current(path):
        _write(path, [parse_assignment(text) for text in assignments])
    return params


def _current(path: Path) -> Params | None:
    """The file as it stands; None when it is not valid without the assignments."""
    try:
        return parse_params(read_yaml(path))
    except ConfigError:
        return None


def parse_assignment(text: str) -> tuple[list[str], Any]:
    """'train.stage-1.lr=1e-4' -> (['train', 'stage-1', 'lr'], 0.0001); the value is YAML 1.2, as DVC reads it."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    key, equals, value = text.partition("=")
    keys = key.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError([f"--set {text}: expected KEY=VALUE, for example train.stage-1.lr=1e-4"])
    try:
        return keys, YAML(typ="safe", pure=True).load(value)
    except YAMLError as error:
        raise ConfigError([f"--set {text}: not a YAML value: {' '.join(str(error).split())}"]) from error


def _assign(content: dict, keys: list[str], value: Any) -> None:
    """Missing sections are made: the validation that follows names them and the nearest valid key."""
    for key in keys[:-1]:
        content = content.setdefault(key, {})
        if not isinstance(content, dict):
            raise ConfigError([f"--set {'.'.join(keys)}: '{key}' is a value, not a section"])
    content[keys[-1]] = value


def _write(path: Path, changes: list[tuple[list[str], Any]]) -> None:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes, yaml.width = True, 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.add_representer(type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null"))
    content = yaml.load(path.read_text(encoding="utf-8"))
    for keys, value in changes:
        _assign(content, keys, _flow_style(value))
    text = io.StringIO()
    yaml.dump(content, text)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text.getvalue(), encoding="utf-8")
    temporary.replace(path)


def _flow_style(value: Any) -> Any:
    """Lists and mappings on one line, as the file has them."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    if isinstance(value, list):
        value = CommentedSeq(value)
    elif isinstance(value, dict):
        value = CommentedMap(value)
    else:
        return value
    value.fa.set_flow_style()
    return value
