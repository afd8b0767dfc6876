"""Does a picture show what its caption says? Told by its distance to the true picture, against nine others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shift_diffusion.data.store import PreparedData

NUM_OTHERS = 9
CHANCE = 1 / (NUM_OTHERS + 1)


def caption_match(generated: Tensor, true: Tensor, captions: Sequence[str], *, seed: int = 0) -> float:
    """Share of pictures nearer to their own caption's true picture than to those of nine other captions.

    Args:
        generated: features (n, d), row i drawn from captions[i].
        true: features (n, d) of the true pictures of the same captions.
        captions: n texts; pictures of an equal caption are never each other's rivals.
        seed: of the choice of the others.

    Returns:
        between 0 and 1; 0.1 by chance.

    Raises:
        ValueError: fewer than ten different captions.
    """
    if len(set(captions)) <= NUM_OTHERS:
        raise ValueError(f"caption match needs {NUM_OTHERS + 1} different captions, there are {len(set(captions))}")
    distances = torch.cdist(generated.double(), true.double())
    numbers = {text: number for number, text in enumerate(dict.fromkeys(captions))}
    label = torch.tensor([numbers[text] for text in captions])
    first_of = torch.tensor([captions.index(text) for text in numbers])  # a true picture for every caption
    rng = torch.Generator().manual_seed(seed)
    hits = 0
    for row, own in enumerate(label.tolist()):
        order = torch.randperm(len(numbers) - 1, generator=rng)[:NUM_OTHERS]
        others = first_of[order + (order >= own)]  # skips the own caption
        hits += bool(distances[row, row] < distances[row, others].min())
    return hits / len(label)


def true_pictures(data: PreparedData, indices: Tensor, resolution: int) -> tuple[Tensor, Tensor]:
    """Real pictures that captions fully describe.

    Args:
        indices: (n,) int64 pictures of `data` whose captions were the prompts.

    Returns:
        positions (k,) into `indices` of the usable ones, and uint8 (k, 3, R, R). Avatars are drawn anew from captions
        that leave nothing out; of other data, the picture that the caption belongs to is the true one.
    """
    rows = indices.tolist()
    if data.source != "avatars":
        return torch.arange(len(rows)), data.batch(rows, resolution)
    from shift_diffusion.data.avatars import render

    full = [place for place, row in enumerate(rows) if data.captions[row] == data.full_captions[row]]
    drawn: dict[str, Tensor] = {}
    for place in full:
        text = data.captions[rows[place]]
        if text not in drawn:
            drawn[text] = torch.from_numpy(render(text, resolution).copy()).permute(2, 0, 1)
    empty = torch.empty(0, 3, resolution, resolution, dtype=torch.uint8)
    pictures = torch.stack([drawn[data.captions[rows[place]]] for place in full]) if full else empty
    return torch.tensor(full, dtype=torch.int64), pictures
