"""Reading of good and damaged image files."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fpp_sweep.core.datasets import BadImageError, FileImages, open_dataset
from tests.kit.datasets import jpeg, write_image


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


RAMP = Image.linear_gradient("L").resize((8, 8))


@pytest.mark.parametrize(
    ("kind", "image"),
    [
        ("JPEG", RAMP),
        ("JPEG", RAMP.convert("CMYK")),
        ("PNG", RAMP.convert("RGB").convert("P")),
        ("PNG", RAMP.convert("RGBA")),
        ("PNG", RAMP.convert("LA")),
        ("PNG", RAMP.convert("1")),
        ("TIFF", RAMP),
        ("BMP", RAMP),
        ("WEBP", RAMP.convert("RGB")),
        ("GIF", RAMP),
        ("PPM", RAMP),
    ],
)
def test_every_kind_of_image_becomes_rgb(tmp_path: Path, kind: str, image: Image.Image) -> None:
    write_image(tmp_path / "a.jpg", encoded(image, kind))  # some .jpg files of Pets have another format
    decoded = FileImages(tmp_path).image("a.jpg")
    assert (decoded.mode, decoded.size) == ("RGB", (8, 8))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("PNG", np.asarray(RAMP, np.uint16) * 257),
        ("TIFF", np.asarray(RAMP, np.uint16) * 257),
        ("TIFF", np.asarray(RAMP, np.int32) * 257),
        ("TIFF", np.asarray(RAMP, np.float32) / 255),
    ],
)
def test_an_image_that_would_become_white_or_black_is_refused(tmp_path: Path, kind: str, values: np.ndarray) -> None:
    write_image(tmp_path / "a.tif", encoded(Image.fromarray(values), kind))
    with pytest.raises(BadImageError, match=r"a\.tif: a grayscale .* of 16 bits or of floats; convert it to 8 bits$"):
        FileImages(tmp_path).image("a.tif")


def test_the_exif_orientation_is_ignored(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: turned by 90 degrees
    image = Image.new("RGB", (12, 8))
    write_image(tmp_path / "a.jpg", encoded(image, "JPEG", exif=exif))
    assert FileImages(tmp_path).image("a.jpg").size == (12, 8)


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (encoded(NOISE, "JPEG")[:1500], "truncated"),
        (encoded(NOISE, "PNG")[:1500], "truncated"),
        (b"", "the file is empty"),
        (b"<html>404 not found</html>", "not an image"),
        (EPS, "not an image"),
        (encoded(NOISE, "PNG").replace(b"IDAT", b"IDAX"), ""),
    ],
)
def test_a_damaged_file_is_named_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    write_image(tmp_path / "cat/a.jpg", content)
    with pytest.raises(BadImageError, match=f"^{tmp_path}/cat/a.jpg: .*{reason}") as refusal:
        FileImages(tmp_path).image("cat/a.jpg")
    assert "\n" not in str(refusal.value)
    pickle.loads(pickle.dumps(refusal.value))


def test_a_jpeg_cut_anywhere_is_a_bad_image(tmp_path: Path) -> None:
    whole = encoded(NOISE.resize((16, 16)), "JPEG")
    for size in range(0, len(whole), 7):
        write_image(tmp_path / "a.jpg", whole[:size])
        with pytest.raises(BadImageError, match=r"a\.jpg"):
            FileImages(tmp_path).image("a.jpg")


def test_the_fingerprint_changes_with_the_size_and_with_the_time_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    write_image(path)
    source = FileImages(tmp_path)
    before = source.fingerprint("a.jpg")
    assert source.fingerprint("a.jpg") == before
    status = path.stat()
    path.write_bytes(bytes(reversed(path.read_bytes())))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    replaced = source.fingerprint("a.jpg")
    assert replaced != before
    write_image(path, jpeg(size=(100, 100)))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert source.fingerprint("a.jpg") not in {before, replaced}


def test_image_sources_can_be_pickled(tmp_path: Path) -> None:
    write_image(tmp_path / "a.jpg")
    source = pickle.loads(pickle.dumps(FileImages(tmp_path)))
    assert source.image("a.jpg").size == (12, 8)
    scenes = open_dataset("scenes", "test")
    rendered = pickle.loads(pickle.dumps(scenes.source)).image(scenes.ids[0])
    assert rendered.tobytes() == scenes.source.image(scenes.ids[0]).tobytes()
