"""`python -m flows.check_compose [FILE]`: compose.yaml checked without a Docker engine.

Every rule is one function that yields problems. Where `docker compose` is installed (it needs no running
engine for this), its own parser reads the file too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from shift_diffusion.config import ConfigError, read_yaml

_VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z0-9_]+)(:\?[^}]*)?(:?-[^}]*)?\}")
_SECRET = re.compile(r"PASSWORD|SECRET|ACCESS_KEY|AUTH")
_KEYS = {"name", "services", "volumes", "networks", "configs", "secrets"}
_SERVICE_KEYS = {"image", "restart", "environment", "configs", "volumes", "healthcheck", "command", "ports"}
_SERVICE_KEYS |= {"depends_on", "entrypoint"}


def problems_of(compose: dict, example: str, text: str) -> list[str]:
    """All problems of a compose file; `example` is the text of .env.example, `text` the file's own."""
    services = compose.get("services", {})
    return [
        *_unknown_keys(compose),
        *(problem for name, service in services.items() for problem in _service_problems(name, service)),
        *_reference_problems(compose),
        *_variable_problems(text, example),
        *_cycles(services),
    ]


def _unknown_keys(compose: dict) -> Iterator[str]:
    yield from (f"{key}: unknown key" for key in compose if key not in _KEYS)
    for name, service in compose.get("services", {}).items():
        yield from (f"services.{name}.{key}: unknown key" for key in service if key not in _SERVICE_KEYS)


def _service_problems(name: str, service: dict) -> Iterator[str]:
    image = service.get("image", "")
    if not re.fullmatch(r"[\w./-]+:[\w.-]+", image) or image.endswith(":latest"):
        yield f"services.{name}.image: {image or 'missing'}: name a published image with a fixed version"
    for port in service.get("ports", []):
        if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", str(port)):
            yield f"services.{name}.ports: {port}: bind it to this host, as 127.0.0.1:PORT:PORT"
    for key, value in service.get("environment", {}).items():
        if _SECRET.search(key) and not _VARIABLE.search(str(value)):
            yield f"services.{name}.environment.{key}: a secret in the file; take it from .env"


def _reference_problems(compose: dict) -> Iterator[str]:
    services = compose.get("services", {})
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            if other not in services:
                yield f"services.{name}.depends_on: no service {other}"
            elif how.get("condition") == "service_healthy" and "healthcheck" not in services[other]:
                yield f"services.{name}.depends_on.{other}: waits for health, but {other} has no healthcheck"
        for volume in service.get("volumes", []):
            source = str(volume).partition(":")[0]
            if not source.startswith((".", "/")) and source not in compose.get("volumes", {}):
                yield f"services.{name}.volumes: volume {source} is not declared"
        for config in service.get("configs", []):
            if config["source"] not in compose.get("configs", {}):
                yield f"services.{name}.configs: config {config['source']} is not declared"


def _variable_problems(text: str, example: str) -> Iterator[str]:
    known = set(re.findall(r"^([A-Z0-9_]+)=", example, re.M))
    used = {match[1]: match for match in _VARIABLE.finditer(text)}
    for name, match in used.items():
        if name not in known:
            yield f"${{{name}}}: not in .env.example"
        if not match[2]:
            yield f"${{{name}}}: may be empty; write ${{{name}:?see .env.example}}"
    yield from (f".env.example: {name} is not used" for name in sorted(known - set(used)))
    for line in re.findall(r"^[A-Z0-9_]+=.+$", example, re.M):
        yield f".env.example: {line.partition('=')[0]} has a value; an example holds none"


def _cycles(services: dict) -> Iterator[str]:
    def reaches(start: str, seen: tuple[str, ...]) -> bool:
        after = services.get(seen[-1], {}).get("depends_on", {})
        return start in after or any(reaches(start, (*seen, other)) for other in after if other not in seen)

    yield from (f"services.{name}.depends_on: waits for itself" for name in services if reaches(name, (name,)))


def ask_docker(file: Path) -> list[str]:
    """What `docker compose config` says, with every variable filled in; nothing where it isn't installed."""
    if not shutil.which("docker") or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        return []
    filled = {match[1]: "x" for match in _VARIABLE.finditer(file.read_text(encoding="utf-8"))}
    command = ["docker", "compose", "-f", str(file), "config", "--quiet"]
    done = subprocess.run(command, env={**os.environ, **filled}, capture_output=True, text=True)
    return done.stderr.splitlines() if done.returncode else []


def main(file: Path) -> int:
    try:
        compose = read_yaml(file)
        example = (file.parent / ".env.example").read_text(encoding="utf-8")
    except (ConfigError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    problems = problems_of(compose, example, file.read_text(encoding="utf-8")) + ask_docker(file)
    print("\n".join(problems) if problems else f"{file}: good", file=sys.stderr if problems else sys.stdout)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "compose.yaml")))
