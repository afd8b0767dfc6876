"""How fast pictures are prepared, against one plain Pillow process and against decoding alone; and in what memory.

    python -m benchmarks.prepare                 # 5,000 JPEGs of 512 pixels
    python -m benchmarks.prepare --memory        # peak memory at 5,000 and 50,000 pictures

The plain process does what prepare does and nothing else: decode (in draft mode, as prepare), crop, area-average
to three sides. "Decoding alone" decodes the same files on the same number of cores and throws the pixels away.
Wall times include starting the workers. Each variant runs `--repeats` times, in turn; the median counts.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

SIDES = (64, 32, 16)


def write_jpegs(folder: Path, count: int, side: int) -> None:
    """Pictures with detail at every scale, a few of them encoded and the rest made by changing a comment."""
    folder.mkdir(parents=True)
    originals = []
    for seed in range(50):
        rng, total = np.random.default_rng(seed), np.zeros((side, side, 3))
        for step in (4, 16, 64, 256):
            small = rng.integers(0, 256, (step, step, 3), dtype=np.uint8)
            total += np.asarray(Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC), np.float64)
        buffer = io.BytesIO()
        Image.fromarray((total / 4).astype(np.uint8)).save(buffer, "JPEG", quality=90)
        originals.append(buffer.getvalue())
    for number in range(count):
        data, comment = originals[number % 50], f"{number}".encode()
        marker = b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment
        (folder / f"{number:06}.jpg").write_bytes(data[:2] + marker + data[2:])


def plain_pillow(folder: Path, draft: bool = True) -> dict[int, np.ndarray]:
    """One process, no report, no split, no hashes: the least that gives the same pixels."""
    arrays: dict[int, list[np.ndarray]] = {side: [] for side in SIDES}
    for path in sorted(folder.iterdir()):
        image = Image.open(path)
        if draft:
            image.draft(None, (128, 128))
        image = image.convert("RGB")
        for side in SIDES:
            image = image.reduce(image.width // side)
            arrays[side].append(np.asarray(image))
    return {side: np.stack(pictures) for side, pictures in arrays.items()}


def _decode_only(paths: list[str]) -> int:
    for path in paths:
        image = Image.open(path)
        image.draft(None, (128, 128))
        image.load()
    return len(paths)


def decode_alone(folder: Path, workers: int) -> None:
    paths = [str(path) for path in sorted(folder.iterdir())]
    chunks = [paths[start : start + 16] for start in range(0, len(paths), 16)]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert sum(pool.map(_decode_only, chunks)) == len(paths)


def prepare(folder: Path, out: Path, workers: int) -> None:
    # inside, as in stages/prepare.py: worker processes import this file again, and need none of it
    from shift_diffusion.config import Data, Text
    from shift_diffusion.data.prepare import prepare_data

    data = Data(
        source="folder",
        path=str(folder),
        num_images=None,
        validation_fraction=0.1,
        background="#ffffff",
        min_size=16,
        max_rejected_fraction=0.0,
        empty_class="warn",
        workers=workers,
    )
    prepare_data(data, Text(encoder="none", name=None, max_tokens=8), SIDES, out)


def measure(function, *arguments) -> tuple[float, float]:
    """(wall, CPU) seconds; CPU counts finished workers too, and other programs' load hardly disturbs it."""
    start, cpu = time.perf_counter(), _cpu()
    function(*arguments)
    return time.perf_counter() - start, _cpu() - cpu


def _cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def speed(count: int, workers: int, repeats: int) -> dict:
    with tempfile.TemporaryDirectory() as temporary:
        folder, out = Path(temporary) / "jpegs", Path(temporary) / "out"
        write_jpegs(folder, count, 512)
        prepare(folder, out, workers)  # imports, and files into the system's cache
        times: dict[str, list[tuple[float, float]]] = {
            "plain": [],
            "plain_without_draft": [],
            "decode_alone": [],
            "prepare": [],
        }
        for _ in range(repeats):
            times["prepare"].append(measure(prepare, folder, out, workers))
            times["plain"].append(measure(plain_pillow, folder))
            times["decode_alone"].append(measure(decode_alone, folder, workers))
            times["plain_without_draft"].append(measure(plain_pillow, folder, False))
        expected, whole = plain_pillow(folder), plain_pillow(folder, draft=False)
        found = {side: np.load(out / f"images_{side}.npy", mmap_mode="r") for side in SIDES}
        median, cpu = (
            {name: statistics.median(run[which] for run in runs) for name, runs in times.items()} for which in (0, 1)
        )
        return {
            "pictures": count,
            "workers": workers,
            "wall_seconds": {name: round(value, 2) for name, value in median.items()},
            "cpu_seconds": {name: round(value, 2) for name, value in cpu.items()},
            "times_as_fast_as_plain": round(median["plain"] / median["prepare"], 2),
            "times_as_fast_as_plain_without_draft": round(median["plain_without_draft"] / median["prepare"], 2),
            "times_decoding_alone": round(median["prepare"] / median["decode_alone"], 2),
            "times_decoding_alone_in_cpu_time": round(cpu["prepare"] / cpu["decode_alone"], 2),
            "same_pixels_as_plain": all(bool((expected[side] == found[side]).all()) for side in SIDES),
            "largest_difference_to_whole_decoding": int(np.abs(whole[64].astype(int) - found[64]).max()),
        }


def memory(counts: list[int], workers: int) -> dict:
    """Peak resident memory of the main process and of its largest worker, each count in a process of its own."""
    peaks = {}
    for count in counts:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "jpegs"
            write_jpegs(folder, count, 128)
            command = [sys.executable, "-m", "benchmarks.prepare", "--peak-of", str(folder), "--workers", str(workers)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            peaks[str(count)] = json.loads(output.splitlines()[-1])
            shutil.rmtree(folder)
    return {"peak_memory_mb": peaks}


def peak_of(folder: Path, workers: int) -> dict:
    with tempfile.TemporaryDirectory() as temporary:
        prepare(folder, Path(temporary) / "out", workers)
    main, largest = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"main": round(main.ru_maxrss / 1024, 1), "largest_worker": round(largest.ru_maxrss / 1024, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="peak memory instead of speed")
    parser.add_argument("--peak-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak_of:
        result = peak_of(options.peak_of, options.workers)
    elif options.memory:
        result = memory([options.count, 10 * options.count], options.workers)
    else:
        result = speed(options.count, options.workers, options.repeats)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
