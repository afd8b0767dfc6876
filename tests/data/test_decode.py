"""Every kind of picture becomes upright 8-bit RGB with the right colors, or is refused with a reason."""

import io

import numpy as np
import pytest
from PIL import Image

from shift_diffusion.data import decode as module
from shift_diffusion.data.decode import Rejected, Target, decode, prepare
from tests.data import files

TARGET = Target(resolutions=(8, 16), background="#00ff00", min_size=8)


def pixels(data: bytes, target: Target = TARGET, side: int = 16) -> np.ndarray:
    picture = decode(data, target)
    for resolution, array in picture.pixels.items():
        assert array.shape == (resolution, resolution, 3)
        assert array.dtype == np.uint8
    return picture.pixels[side]


def assert_halves(array: np.ndarray, top=files.RED, bottom=files.BLUE, tolerance: int = 16) -> None:
    assert np.abs(array[2:6].astype(int) - top).max() <= tolerance
    assert np.abs(array[10:14].astype(int) - bottom).max() <= tolerance


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("JPEG", {"quality": 95}),
        ("JPEG", {"quality": 95, "progressive": True}),
        ("WEBP", {"quality": 95}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("BMP", {}),
        ("GIF", {}),
        ("PPM", {}),
    ],
)
def test_formats(kind, options):
    assert_halves(pixels(files.encoded(files.halves(), kind, **options)))


def test_cmyk_red_stays_red_with_and_without_adobes_marker():
    adobe = files.encoded(files.halves(mode="CMYK"), "JPEG", quality=95)
    plain = files.plain_cmyk_jpeg(files.halves())
    assert b"Adobe" in adobe
    assert b"Adobe" not in plain
    assert_halves(pixels(adobe), tolerance=24)
    assert_halves(pixels(plain), tolerance=24)
    assert_halves(pixels(files.encoded(files.halves(mode="CMYK"), "TIFF")), tolerance=24)


def test_gray_and_one_bit():
    assert_halves(
        pixels(files.encoded(files.halves(top="#c8c8c8", bottom="#202020", mode="L"), "PNG")), (200,) * 3, (32,) * 3
    )
    bits = files.halves(top="white", bottom="black").convert("1")
    assert_halves(pixels(files.encoded(bits, "PNG")), (255,) * 3, (0,) * 3, 0)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(kind):
    values = np.full((32, 32), 200 * 257, np.uint16)
    values[16:] = 20 * 257
    assert_halves(pixels(files.encoded(Image.fromarray(values), kind)), (200,) * 3, (20,) * 3, 0)


def test_32_bit_integers_and_floats():
    values = np.full((32, 32), 200 * 257, np.int32)
    values[16:] = 20 * 257
    assert_halves(pixels(files.encoded(Image.fromarray(values), "TIFF")), (200,) * 3, (20,) * 3, 0)
    shares = (values / 65535).astype(np.float32)
    assert_halves(pixels(files.encoded(Image.fromarray(shares), "TIFF")), (200,) * 3, (20,) * 3, 0)
    shares[3, 3] = np.nan
    with pytest.raises(Rejected, match="finite"):
        decode(files.encoded(Image.fromarray(shares), "TIFF"), TARGET)


def transparent(mode: str) -> Image.Image:
    """Upper half transparent black, lower half opaque blue."""
    image = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    image.paste((*files.BLUE, 255), (0, 32, 64, 64))
    return image.convert(mode)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_transparent_areas_show_the_background(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    assert_halves(pixels(files.encoded(transparent("RGBA"), kind, **options)), (0, 255, 0), files.BLUE, 2)


def test_gray_with_alpha_and_palette_with_transparency():
    gray = np.asarray(files.BLUE) @ [0.299, 0.587, 0.114]
    assert_halves(pixels(files.encoded(transparent("LA"), "PNG")), (0, 255, 0), (int(gray),) * 3, 2)
    palette = Image.new("P", (64, 64), 0)
    palette.putpalette([0, 0, 0, *files.BLUE] + [0] * 762)
    palette.paste(1, (0, 32, 64, 64))
    assert_halves(pixels(files.encoded(palette, "PNG", transparency=0)), (0, 255, 0), files.BLUE, 0)
    assert_halves(pixels(files.encoded(palette, "GIF", transparency=0)), (0, 255, 0), files.BLUE, 0)
    rgb = files.encoded(files.halves(), "PNG", transparency=files.RED)
    assert_halves(pixels(rgb), (0, 255, 0), files.BLUE, 2)


def test_half_transparent_is_composited():
    image = Image.new("RGBA", (32, 32), (255, 0, 0, 128))
    array = pixels(files.encoded(image, "PNG"), Target(resolutions=(16,), background="#0000ff", min_size=8))
    assert np.abs(array.astype(int) - (128, 0, 127)).max() <= 2


@pytest.mark.parametrize("tag", range(1, 9))
def test_exif_orientation_is_applied_once(tag):
    marked = files.halves((64, 96))
    marked.paste("#00ff00", (0, 0, 32, 24))  # upper left
    picture = decode(files.with_orientation(marked, tag), Target(resolutions=(16,), background="#ffffff", min_size=8))
    assert (picture.width, picture.height) == (64, 96)
    reference = prepare(marked, Target(resolutions=(16,), background="#ffffff", min_size=8))
    difference = np.abs(picture.pixels[16].astype(int) - reference.pixels[16])
    assert difference.mean() < 6


def test_damaged_metadata_does_not_make_a_bad_picture():
    data = files.encoded(files.halves(), "JPEG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff")
    assert_halves(pixels(data))


def test_animation_gives_its_first_frame():
    frames = [files.halves(), Image.new("RGB", (64, 64), "white")]
    for kind in ("GIF", "WEBP", "TIFF"):
        data = files.encoded(frames[0], kind, save_all=True, append_images=frames[1:])
        assert decode(data, TARGET).animated
        assert_halves(pixels(data), tolerance=24)


def test_heic_where_the_extra_is_installed():
    heif = pytest.importorskip("pillow_heif")
    buffer = io.BytesIO()
    heif.from_pillow(files.halves((64, 64))).save(buffer, quality=95)
    assert_halves(pixels(buffer.getvalue()), tolerance=24)


def whole_jpeg() -> bytes:
    return files.encoded(files.noise(1, (200, 160)), "JPEG", quality=95)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty file"),
        (b"this is text, not a picture\n" * 40, "not a picture"),
        (whole_jpeg()[: len(whole_jpeg()) * 6 // 10], "truncated"),
        (files.encoded(files.noise(1), "PNG")[:300], "truncated|damaged"),
        (files.png_with_bad_checksum(files.noise(2)), "damaged"),
        (files.png_claiming(20_000, 20_000), "more than 100,000,000 pixels"),
        (files.png_claiming(60_000, 60_000), "more than 100,000,000 pixels"),
        (files.encoded(Image.new("RGB", (1, 1)), "PNG"), "min_size"),
        (files.encoded(Image.new("RGB", (3, 4000)), "PNG"), "min_size"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n", "not a picture"),
    ],
)
def test_refused_with_a_reason(data, reason):
    with pytest.raises(Rejected, match=reason):
        decode(data, TARGET)


@pytest.mark.parametrize("size", [(1, 1), (3, 4000), (4000, 3), (8, 8), (17, 5)])
def test_no_side_is_ever_zero(size):
    target = Target(resolutions=(4, 8, 64), background="#ffffff", min_size=1)
    picture = decode(files.encoded(Image.new("RGB", size, files.RED), "PNG"), target)
    assert all((array == files.RED).all() for array in picture.pixels.values())


def test_resizing_is_the_mean_over_areas():
    image = files.noise(3, (256, 256))
    sides = module.resize(image, (16, 32, 64))
    exact = np.asarray(image, np.float64).reshape(64, 4, 64, 4, 3).mean((1, 3))
    assert np.abs(sides[64] - exact).max() <= 0.51
    for large, small in ((64, 32), (32, 16)):
        means = sides[large].astype(np.float64).reshape(small, 2, small, 2, 3).mean((1, 3))
        assert np.abs(sides[small] - means).max() <= 0.51


def test_a_large_jpeg_is_decoded_small_with_nearly_the_same_result():
    image = files.noise(4, (512, 512))
    data = files.encoded(image, "JPEG", quality=95)
    target = Target(resolutions=(64, 32, 16), background="#ffffff", min_size=8)
    whole = module.resize(Image.open(io.BytesIO(data)).convert("RGB"), (64, 32, 16))
    found = decode(data, target).pixels
    for side, limit in ((64, 3), (32, 2), (16, 2)):
        assert np.abs(found[side].astype(int) - whole[side]).max() <= limit
