"""A small prepared folder, written in the store's own format: colored blobs that a tiny network can learn."""

import json
from pathlib import Path

import numpy as np

from shift_diffusion.data.store import FORMAT_VERSION, PreparedData
from shift_diffusion.data.text_store import TextWriter
from shift_diffusion.files import write_json

RESOLUTIONS = (8, 16, 32)
TEXT_DIM = 384  # of the embedded text encoder


def write_prepared(folder: Path, num_train: int = 40, num_validation: int = 12, captions: bool = True) -> PreparedData:
    generator = np.random.default_rng(0)
    total = num_train + num_validation
    for side in RESOLUTIONS:
        y, x = np.mgrid[0:side, 0:side] / side
        center, color = generator.random((total, 2, 1, 1)), generator.random((total, 1, 1, 3))
        blob = np.exp(-20 * ((x - center[:, 0]) ** 2 + (y - center[:, 1]) ** 2))
        np.save(folder / f"images_{side}.npy", (255 * blob[..., None] * color).astype(np.uint8))
    rows = [
        {"id": f"blob-{i}.png", "caption": f"blob {i % 4}", "split": "train" if i < num_train else "validation"}
        for i in range(total)
    ]
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if captions:
        writer = TextWriter(folder, TEXT_DIM)
        for _ in range(4):
            tokens = generator.standard_normal((3, TEXT_DIM))
            writer.add(tokens.astype(np.float16), tokens.mean(0).astype(np.float32))
        writer.finish(i % 4 for i in range(total))
    info = {"format_version": FORMAT_VERSION, "content_hash": "blobs", "source": "blobs", "num_images": total}
    write_json(folder / "info.json", info | {"resolutions": list(RESOLUTIONS)})
    return PreparedData.open(folder)
