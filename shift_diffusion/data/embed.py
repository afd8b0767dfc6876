"""The captions of a prepared folder become text.safetensors: each unique caption is encoded once."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shift_diffusion.config import Text
from shift_diffusion.data.cache import Cache
from shift_diffusion.data.sources import hash_of
from shift_diffusion.data.text import Embedding, TextEncoder, identity, load_text_encoder
from shift_diffusion.data.text_store import TextWriter
from shift_diffusion.progress import progress

_AT_ONCE = 4096  # captions between two looks at the cache


def write_text(
    folder: Path, text: Text, captions: Callable[[], Iterable[str]], cache_folder: Path | None
) -> tuple[dict[str, Any], int]:
    """Writes `folder/text.safetensors`, unless text.encoder is none.

    `captions` gives every picture's caption; it is called twice, so that only the unique ones are in memory.

    Returns:
        (the report on text, the number of captions that had to be encoded now).
    """
    if text.encoder == "none":
        return {"encoder": {"name": "none"}}, 0
    numbers = {caption: number for number, caption in enumerate(dict.fromkeys(captions()))}
    embedder = Embedder(text, cache_folder)
    writer, truncated, longest = None, 0, 0
    for embedding in progress(embedder.embed(list(numbers)), "encoding captions", "caption", total=len(numbers)):
        writer = writer or TextWriter(folder, len(embedding.pooled))
        writer.add(embedding.tokens, embedding.pooled)
        truncated, longest = truncated + embedding.truncated, max(longest, len(embedding.tokens))
    embedder.close()
    assert writer is not None  # there is at least one picture, hence one caption
    writer.finish(numbers[caption] for caption in captions())
    encoder = {"name": text.encoder, "model": text.name, "max_tokens": text.max_tokens, "dim": writer.dim}
    return {
        "encoder": encoder,
        "unique_captions": len(numbers),
        "truncated_captions": truncated,
        "longest_caption_tokens": longest,
    }, embedder.num_encoded


class Embedder:
    """An encoder behind a cache; the model is loaded at the first caption the cache doesn't hold."""

    def __init__(self, text: Text, cache_folder: Path | None):
        self.text, self.cache = text, Cache(None if cache_folder is None else cache_folder / "captions.db")
        self.encoder: TextEncoder | None = None
        self.num_encoded = 0

    def embed(self, captions: Sequence[str]) -> Iterator[Embedding]:
        """Embeddings in the captions' order."""
        for start in range(0, len(captions), _AT_ONCE):
            block = captions[start : start + _AT_ONCE]
            keys = {caption: hash_of(identity(self.text), caption) for caption in block}
            found = {caption: _unpack(value) for caption in block if (value := self.cache.get(keys[caption]))}
            missing = [caption for caption in block if caption not in found]
            new: dict[str, bytes] = {}
            for caption, embedding in zip(missing, self._encode(missing), strict=True):
                found[caption], new[keys[caption]] = embedding, _pack(embedding)
            self.cache.put(new)
            for caption in block:
                yield found[caption]

    def _encode(self, captions: Sequence[str]) -> Iterator[Embedding]:
        if captions and self.encoder is None:
            self.encoder = load_text_encoder(self.text)
        self.num_encoded += len(captions)
        return self.encoder.embed(captions) if self.encoder is not None else iter(())

    def close(self) -> None:
        self.cache.close()


def _pack(embedding: Embedding) -> bytes:
    head = struct.pack("<ii?", len(embedding.tokens), len(embedding.pooled), embedding.truncated)
    return head + embedding.pooled.tobytes() + embedding.tokens.tobytes()


def _unpack(data: bytes) -> Embedding:
    size = struct.calcsize("<ii?")
    length, dim, truncated = struct.unpack("<ii?", data[:size])
    pooled = np.frombuffer(data, np.float32, dim, size)
    tokens = np.frombuffer(data, np.float16, length * dim, size + pooled.nbytes).reshape(length, dim)
    return Embedding(tokens, pooled, truncated)
