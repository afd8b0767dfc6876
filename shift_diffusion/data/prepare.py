"""A source of pictures becomes `data/prepared`: decoded, resized, split, captioned, counted; see store.py."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shift_diffusion.config import ConfigError, Data, Text
from shift_diffusion.data.array_writer import ArrayWriter
from shift_diffusion.data.cache import Cache
from shift_diffusion.data.decode import Target
from shift_diffusion.data.embed import write_text
from shift_diffusion.data.sources import ContentDigest, Source, hash_of, open_source
from shift_diffusion.data.work import Outcome, num_workers, results
from shift_diffusion.files import new_folder, write_json
from shift_diffusion.progress import progress

FORMAT_VERSION = 1
_LISTED = 200  # refused pictures named in the report; all of them are counted


def prepare_data(
    data: Data, text: Text, resolutions: Sequence[int], out: str | Path, cache_folder: Path | None = None
) -> dict[str, Any]:
    """Prepares all pictures of a source, atomically: `out` is whole or not there.

    The bytes written depend on the pictures and the settings alone, not on workers, cache or directory order.

    Args:
        data, text: sections of params.yaml.
        resolutions: sides in pixels; one array each.
        out: folder to write, replaced if it exists.
        cache_folder: where decoded pictures and embeddings are kept between runs; None = nowhere.

    Returns:
        The report: found = used + sum of skipped, modes, sizes, duplicates, splits, text; JSON values. All of
        it follows from the data, except "run": what this very run had to do, and what the cache saved.

    Raises:
        ConfigError: no usable picture, too many refused ones, or nothing to hold out for validation.
    """
    source = open_source(data)
    if not len(source):
        place = f" ({data.path})" * source.reads_files
        raise ConfigError([f"data.source: {data.source} holds no pictures{place}"])
    target = Target(resolutions=tuple(sorted(set(resolutions))), background=data.background, min_size=data.min_size)
    with new_folder(out) as folder:
        report = _write_pictures(folder, source, data, target, cache_folder)
        report["ignored"] = source.notes
        report["text"], encoded = write_text(folder, text, lambda: _captions(folder), cache_folder)
        report["run"]["captions_encoded"] = encoded
        report["content_hash"] = _content_hash(folder, target, report["text"])
        write_json(folder / "info.json", _info(data, target, report))
    return report


def _write_pictures(
    folder: Path, source: Source, data: Data, target: Target, cache_folder: Path | None
) -> dict[str, Any]:
    tally = Tally(len(source), max(target.resolutions))
    cache_file = None if cache_folder is None else cache_folder / "pictures.db"
    cache, fresh = Cache(cache_file), {}
    arrays = {side: ArrayWriter(folder / f"images_{side}.npy", side) for side in target.resolutions}
    content = ContentDigest()
    outcomes = results(source.items(), data, target, cache_file, num_workers(data.workers))
    with open(folder / "manifest.jsonl", "w", encoding="utf-8") as manifest:
        for outcome in progress(outcomes, "preparing pictures", total=len(source)):
            content.add(outcome.item, outcome.result.identity)
            row = tally.add(outcome, data.validation_fraction)
            if row is None or outcome.picture is None:
                continue
            for side, writer in arrays.items():
                writer.add(outcome.picture.pixels[side])
            manifest.write(_json_line(row))
            if not outcome.result.cached:
                fresh[outcome.result.cache_key] = outcome.result.packed
            if len(fresh) >= 256:
                cache.put(fresh)
                fresh = {}
    cache.put(fresh)
    cache.close()
    for writer in arrays.values():
        writer.close()
    report = tally.report()
    # flows.retrain compares it: is there new data?
    report["source_hash"] = content.hexdigest() if source.reads_files else source.content_hash()
    _check(report, data)
    _fill_empty_split(folder, report)
    return report


def _json_line(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n"


class Tally:
    """Counts outcomes and makes the manifest's rows."""

    def __init__(self, found: int, largest: int):
        self.found, self.largest = found, largest
        self.counts: dict[str, Counter] = {name: Counter() for name in ("skipped", "modes", "formats", "splits")}
        self.refused: list[dict[str, str]] = []
        self.seen: set[bytes] = set()
        self.sizes = array("I")
        self.numbers: Counter = Counter()

    def add(self, outcome: Outcome, validation_fraction: float) -> dict[str, Any] | None:
        """The picture's row of the manifest; None for a refused one."""
        item, picture = outcome.item, outcome.picture
        if picture is None:
            self.counts["skipped"][outcome.result.reason.partition(" (")[0]] += 1
            if len(self.refused) < _LISTED:
                self.refused.append({"id": item.id, "reason": outcome.result.reason})
            return None
        digest = hashlib.sha256(np.ascontiguousarray(picture.pixels[self.largest])).hexdigest()
        split = split_of(digest, validation_fraction)
        self._count(outcome, digest, split)
        return {
            "id": item.id,
            "caption": item.caption,
            "sha256": digest,
            "split": split,
            "width": picture.width,
            "height": picture.height,
            "mode": picture.mode,
            **item.details,
        }

    def _count(self, outcome: Outcome, digest: str, split: str) -> None:
        picture, short = outcome.picture, bytes.fromhex(digest[:32])
        assert picture is not None
        self.numbers["duplicates"] += short in self.seen
        self.seen.add(short)
        self.counts["modes"][picture.mode] += 1
        self.counts["formats"][picture.format or "drawn"] += 1
        self.counts["splits"][split] += 1
        self.numbers["animated"] += picture.animated
        self.numbers["cached"] += outcome.result.cached
        self.numbers["enlarged"] += min(picture.width, picture.height) < self.largest
        self.numbers["without_caption"] += not outcome.item.caption
        self.sizes.append(min(picture.width, picture.height))

    def report(self) -> dict[str, Any]:
        used = len(self.sizes)
        return {
            "found": self.found,
            "used": used,
            **{name: dict(sorted(counter.items())) for name, counter in self.counts.items()},
            "refused": self.refused,
            **{name: int(self.numbers[name]) for name in ("duplicates", "animated", "enlarged", "without_caption")},
            "shorter_side": _quantiles(self.sizes),
            "run": {"decoded": used - int(self.numbers["cached"]), "cached": int(self.numbers["cached"])},
        }


def summary(report: dict[str, Any]) -> str:
    """What happened, in a few lines for people."""
    skipped = report["found"] - report["used"]
    reasons = "; ".join(f"{count} {reason}" for reason, count in report["skipped"].items())
    splits = ", ".join(f"{count} {name}" for name, count in report["splits"].items())
    lines = [
        f"{report['found']} found, {report['used']} used, {skipped} skipped" + (f" ({reasons})" if reasons else ""),
        f"{splits}; {report['duplicates']} duplicates, {report['enlarged']} enlarged",
        f"{report['run']['decoded']} decoded now, {report['run']['cached']} from the cache",
    ]
    lines += [f"warning: no picture in class folder {name}" for name in report["ignored"].get("empty_classes", [])]
    if cut := report["text"].get("truncated_captions"):
        limit = report["text"]["encoder"]["max_tokens"]
        lines.append(f"warning: {cut} different captions are longer than text.max_tokens ({limit}) and were cut")
    return "\n".join(lines)


def _quantiles(sizes: array) -> dict[str, int]:
    if not sizes:
        return {}
    return {
        name: int(np.percentile(sizes, q, method="nearest")) for name, q in (("min", 0), ("median", 50), ("max", 100))
    }


def split_of(digest: str, validation_fraction: float) -> str:
    """train or validation, from the prepared picture's own hash.

    No other picture has a say: adding files moves none, and equal pictures stand on the same side.
    """
    return "validation" if int(digest[:16], 16) < validation_fraction * 2**64 else "train"


def _check(report: dict[str, Any], data: Data) -> None:
    skipped = report["found"] - report["used"]
    named = [f"  {entry['id']}: {entry['reason']}" for entry in report["refused"][:20]]
    if not report["used"]:
        raise ConfigError([f"data: none of {report['found']} pictures can be used:", *named])
    if skipped > data.max_rejected_fraction * report["found"]:
        raise ConfigError(
            [
                f"data.max_rejected_fraction: {skipped} of {report['found']} pictures can't be used, more than "
                f"the allowed {data.max_rejected_fraction:.1%}:",
                *named,
                *([f"  and {skipped - len(named)} more"] if skipped > len(named) else []),
            ]
        )


def _fill_empty_split(folder: Path, report: dict[str, Any]) -> None:
    """In very small sets chance can leave a side empty: the picture with the lowest (highest) hash goes there.

    Raises:
        ConfigError: when all pictures are the same: none could be held out.
    """
    missing = [name for name in ("train", "validation") if not report["splits"].get(name)]
    if not missing:
        return
    path = folder / "manifest.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    hashes = sorted({row["sha256"] for row in rows})
    if len(hashes) < 2:
        raise ConfigError(["data: needs at least 2 different pictures, one to train with and one to validate"])
    moved = hashes[0] if missing == ["validation"] else hashes[-1]
    for row in rows:
        row["split"] = missing[0] if row["sha256"] == moved else row["split"]
    path.write_text("".join(map(_json_line, rows)), encoding="utf-8")
    report["splits"] = dict(sorted(Counter(row["split"] for row in rows).items()))


def _captions(folder: Path) -> Iterator[str]:
    with open(folder / "manifest.jsonl", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["caption"]


def _content_hash(folder: Path, target: Target, text: dict[str, Any]) -> str:
    """Of everything a training run reads: pixels (through their hashes), captions, splits, resolutions, encoder."""
    with open(folder / "manifest.jsonl", "rb") as file:
        manifest = hashlib.file_digest(file, "sha256").hexdigest()
    return hash_of(FORMAT_VERSION, manifest, target.resolutions, *sorted(text.get("encoder", {}).items()))


def _info(data: Data, target: Target, report: dict[str, Any]) -> dict[str, Any]:
    return {
        "format_version": FORMAT_VERSION,
        "source": data.source,
        "num_images": report["used"],
        "resolutions": list(target.resolutions),
        "splits": report["splits"],
        "text": report["text"],
        "content_hash": report["content_hash"],
        "source_hash": report["source_hash"],  # sources.content_hash(data) at that time: another one means new data
    }
