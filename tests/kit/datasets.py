"""Miniature datasets: on disk in the layouts of the real ones, and painted in memory.

The layouts follow the datasets' documentation and not the package's table, so that tests find a mistake in that table.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fpp_sweep.core.datasets import BadImageError, Dataset

# by name of dataset: image folder, split file, and an image path as in the real split file
COOP = {
    "caltech101": (
        "caltech-101/101_ObjectCategories",
        "caltech-101/split_zhou_Caltech101.json",
        "{name}/image_{number:04d}.jpg",
    ),
    "cars": ("stanford_cars", "stanford_cars/split_zhou_StanfordCars.json", "cars_{part}/{number:05d}.jpg"),
    "dtd": ("dtd/images", "dtd/split_zhou_DescribableTextures.json", "{name}/{name}_{number:04d}.jpg"),
    "eurosat": ("eurosat/2750", "eurosat/split_zhou_EuroSAT.json", "{name}/{name}_{number}.jpg"),
    "flowers102": ("oxford_flowers/jpg", "oxford_flowers/split_zhou_OxfordFlowers.json", "image_{number:05d}.jpg"),
    "food101": ("food-101/images", "food-101/split_zhou_Food101.json", "{name}/{number}.jpg"),
    "pets": ("oxford_pets/images", "oxford_pets/split_zhou_OxfordPets.json", "{name}_{number}.jpg"),
    "sun397": ("sun397/SUN397", "sun397/split_zhou_SUN397.json", "{name[0]}/{name}/sun_{number}.jpg"),
    "ucf101": ("ucf101/UCF-101-midframes", "ucf101/split_zhou_UCF101.json", "{name}/v_{name}_g01_c{number:02d}.jpg"),
}
PARTS = {"train": 3, "val": 1, "test": 2}  # number of images of each class
CLASSES = ("maine_coon", "zebra", "acorn")  # in the order of labels, which is not the alphabetical one
AIRCRAFT = ("707-320", "F/A-18", "C-47", "Boeing 717")


def jpeg(colour: tuple[int, int, int] = (200, 80, 40), size: tuple[int, int] = (12, 8)) -> bytes:
    """Return a small JPEG of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "JPEG")
    return buffer.getvalue()


JPEG = jpeg()


def write_image(path: Path, content: bytes = JPEG) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def build_coop(root: Path, name: str, classes: Sequence[str] = CLASSES, parts: Mapping[str, int] = PARTS) -> Path:
    """Write the images and the split file of one of the nine datasets with CoOp's splits; return the split file."""
    images, split_file, template = COOP[name]
    document: dict[str, list[list[object]]] = {}
    number = 0
    for part, count in parts.items():
        entries = document.setdefault(part, [])
        for label, class_name in enumerate(classes):
            for _ in range(count):
                number += 1
                path = template.format(name=class_name, part=part, number=number)
                write_image(root / images / path, jpeg((label * 80 % 256, number % 256, 0)))
                entries.append([path, label, class_name])
    file = root / split_file
    file.write_text(json.dumps(document))
    return file


def build_aircraft(root: Path, variants: Sequence[str] = AIRCRAFT, parts: Mapping[str, int] = PARTS) -> Path:
    """Write FGVC-Aircraft's data folder and return it."""
    folder = root / "fgvc_aircraft"
    (folder / "images").mkdir(parents=True)
    (folder / "variants.txt").write_text("".join(f"{variant}\n" for variant in variants))
    number = 34308
    for part, count in parts.items():
        lines = []
        for _ in range(count):
            for variant in variants:
                number += 1
                write_image(folder / f"images/{number:07d}.jpg")
                lines.append(f"{number:07d} {variant}\n")
        (folder / f"images_variant_{part}.txt").write_text("".join(lines))
    return folder


def build_folders(images: Path, folders: Iterable[str], count: int = 2) -> Path:
    """Write `count` images into each of the folders below `images`, and return `images`."""
    for folder in folders:
        for number in range(count):
            write_image(images / folder / f"{Path(folder).name}_{number}.JPEG")
    return images


# ------------------------------------------------------------ in memory


@dataclass(frozen=True, slots=True)
class Painter:
    """A source of images of smooth noise that depends on the sample's name; picklable for worker processes."""

    size: tuple[int, int] = (24, 20)
    bad: frozenset[str] = frozenset()  # samples whose image cannot be read

    def image(self, sample_id: str) -> Image.Image:
        if sample_id in self.bad:
            raise BadImageError(f"/images/{sample_id}: not an image")
        rng = np.random.default_rng(zlib.crc32(sample_id.encode()))
        return Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)).resize(self.size)

    def fingerprint(self, sample_id: str) -> str:
        return f"{self.size}"


def painted_dataset(
    count: int, *, augmix: bool = False, flip: bool = True, bad: frozenset[str] = frozenset()
) -> Dataset:
    """Return a dataset in memory: painted images of three classes."""
    return Dataset(
        name="painted",
        split="test",
        group="custom",
        classes=("red", "green", "blue"),
        ids=tuple(f"{index}.png" for index in range(count)),
        labels=np.arange(count) % 3,
        source=Painter(bad=bad),
        augmix=augmix,
        flip=flip,
    )
