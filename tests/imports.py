"""What each module of the project imports, read from its source: the base of the two architecture tests."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_file(name: str) -> Path | None:
    base = ROOT.joinpath(*name.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.exists():
            return candidate
    return None


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Every dotted name that `path` imports anywhere, also inside functions; `from a import b` gives a and a.b."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


def closure(path: Path, stop: frozenset[str] = frozenset()) -> set[Path]:
    """The project's files that `path` imports, directly or not; modules named in `stop` are not entered."""
    found, todo = set(), [path]
    while todo:
        for name in imports_of(todo.pop()):
            file = module_file(name) if name.startswith(("shift_diffusion", "stages")) else None
            if file is None or file in found or any(name == s or name.startswith(s + ".") for s in stop):
                continue
            found.add(file)
            todo.append(file)
    return found


def project_files(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
