"""Names and values that any MLflow server accepts, by one rule.

A name keeps ASCII letters, digits and `_ . - /`; every run of other characters becomes one `_`. Two names of one set
that would become the same are told apart by a short hash. A value longer than `VALUE_LIMIT` (the limit has been 250,
500 and 6000 characters in MLflow's history) is cut, and its whole text goes into an artifact.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

NAME_LIMIT = 200
VALUE_LIMIT = 250


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def clean_name(name: object) -> str:
    """`name` by the module's rule; never empty, at most NAME_LIMIT characters."""
    text = re.sub(r"[^A-Za-z0-9_./-]+", "_", str(name))
    text = re.sub(r"/+", "/", text).strip("/")
    text = "/".join(part if part.strip(".") else "_" for part in text.split("/"))
    if len(text) > NAME_LIMIT:
        text = f"{text[: NAME_LIMIT - 9]}_{_hash(str(name))}"
    return text or "_"


def clean_names(names: Iterable[object]) -> dict[str, str]:
    """Given names -> cleaned names, all different."""
    cleaned: dict[str, str] = {}
    for name in map(str, names):
        candidate = clean_name(name)
        if candidate in cleaned.values():
            candidate = f"{candidate[: NAME_LIMIT - 9]}_{_hash(name)}"
        cleaned[name] = candidate
    return cleaned


def flatten(content: Mapping, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as `a.b.c`; lists stay whole, so that a change in length isn't a change of names."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def value_text(value: Any) -> str:
    """A value as text, reversible for JSON types: 0.0001 and 1e-4 are the same text, None is `null`."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        return str(value)


def shorten(text: str, where: str) -> str:
    """`text` itself, or its beginning and where the rest is."""
    if len(text) <= VALUE_LIMIT:
        return text
    note = f"... ({len(text)} characters: {where})"
    return text[: VALUE_LIMIT - len(note)] + note
