"""The catalogue of datasets, their groups, and the names that each is known by.

Folders below the data root are named as CoOp names them. A dataset has our name, the papers' abbreviation and the
official code's id; capitals, hyphens and underscores do not matter. The embedded datasets are rendered on demand.
Names of ImageNet's classes, and templates, are lists of installed packages."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import PIL
from PIL import Image

from fpp_sweep.core.datasets.layouts import Aircraft, DatasetSpec, ImageNetFolders, Layout, Listing, SplitJson
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.files import listed_names
from fpp_sweep.tiny.world import TINY_DATASETS


def openai_names() -> tuple[str, ...]:
    """Return the names that OpenAI's prompts use for ImageNet's classes, in the order of labels."""
    return tuple(_metadata().IMAGENET_CLASSNAMES)


def templates(name: str) -> list[str]:
    """Return a list of templates, with `{}` for the class name: `simple` or `openai`.

    >>> len(templates("openai")), templates("simple")[0]
    (80, 'itap of a {}.')
    """
    functions = getattr(_metadata(), f"{name.upper()}_IMAGENET_TEMPLATES")
    return [function("{}") for function in functions]


@cache
def _metadata() -> Any:
    """Load open_clip's file of lists as a single module: importing the package takes seconds."""
    path = installed_file("open_clip", "zero_shot_metadata.py")
    spec = importlib.util.spec_from_file_location("open_clip_zero_shot_metadata", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def installed_file(package: str, path: str) -> Path:
    """Return a file inside an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise InputError(f"class names and templates of ImageNet need the package {package}, which is not installed")
    return Path(spec.origin).parent / path


@cache
def imagenet_classes() -> dict[str, str]:
    """Return the name that OpenAI's prompts use for each WordNet id, in the order of labels."""
    return dict(zip(_timm_lines("imagenet_synsets"), openai_names(), strict=True))


@cache
def imagenet_v2_classes() -> dict[str, str]:
    """Return names by folder of ImageNet-V2: labels in decimal, sorted as text (0, 1, 10, 100, 101, ...)."""
    names = openai_names()
    folders = sorted(str(label) for label in range(len(names)))
    return {folder: names[int(folder)] for folder in folders}


@cache
def imagenet_a_classes() -> dict[str, str]:
    """Return the 200 classes of ImageNet-A."""
    return _subset("imagenet_a_indices")


@cache
def imagenet_r_classes() -> dict[str, str]:
    """Return the 200 classes of ImageNet-R."""
    return _subset("imagenet_r_indices")


def _subset(indices: str) -> dict[str, str]:
    classes = list(imagenet_classes().items())
    return dict(classes[int(index)] for index in _timm_lines(indices))


def _timm_lines(name: str) -> list[str]:
    return installed_file("timm", f"data/_info/{name}.txt").read_text(encoding="utf-8").split()


@dataclass(frozen=True, slots=True)
class Embedded(Layout):
    """A dataset of `fpp_sweep.tiny.world`, which has no files."""

    name: str

    def read(self, root: Path, split: str) -> Listing:
        world = TINY_DATASETS[self.name]
        return Listing(
            classes=world.classes,
            ids=[f"{index:06d}" for index in range(world.sizes[split])],
            labels=world.labels(split).tolist(),
            source=RenderedImages(self.name, split),
        )


@dataclass(frozen=True, slots=True)
class RenderedImages:
    """Images of an embedded dataset; a sample id is the number that the renderer draws an image from."""

    name: str
    split: str

    def image(self, sample_id: str) -> Image.Image:
        return Image.fromarray(TINY_DATASETS[self.name].render(self.split, int(sample_id)))

    def fingerprint(self, sample_id: str) -> str:
        return _renderer_version()


@cache
def _renderer_version() -> str:
    """Return a hash of the renderer's code and of Pillow's version."""
    digest = hashlib.sha256(PIL.__version__.encode())
    for file in sorted(resources.files("fpp_sweep.tiny").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".py"):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _coop(folder: str, images: str, title: str, test_size: int, *aliases: str) -> DatasetSpec:
    """Describe a fine-grained dataset with CoOp's split file; CoOp's title is an alias here."""
    images = f"{folder}/{images}".rstrip("/")
    layout = SplitJson(images=images, split_file=f"{folder}/split_zhou_{title}.json")
    return DatasetSpec(layout=layout, group="fine_grained", aliases=(title, *aliases), test_size=test_size)


def _shift(layout: ImageNetFolders, test_size: int, *aliases: str) -> DatasetSpec:
    """Describe a shift of ImageNet: the scripts of C-TPT, O-TPT and FPP use AugMix there, though not on ImageNet."""
    return DatasetSpec(layout=layout, group="shifts", aliases=aliases, test_size=test_size)


V2_FOLDER = "imagenetv2/imagenetv2-matched-frequency-format-val"

DATASETS: dict[str, DatasetSpec] = {
    "aircraft": DatasetSpec(
        layout=Aircraft("fgvc_aircraft"), group="fine_grained", aliases=("Air", "FGVCAircraft"), test_size=3333
    ),
    # folder, images in it, CoOp's title, published size of the test split, more aliases
    "caltech101": _coop("caltech-101", "101_ObjectCategories", "Caltech101", 2465, "Calt"),
    "cars": _coop("stanford_cars", "", "StanfordCars", 8041, "Car", "StanfordCar"),
    "dtd": _coop("dtd", "images", "DescribableTextures", 1692),
    "eurosat": _coop("eurosat", "2750", "EuroSAT", 8100, "SAT"),
    "flowers102": _coop("oxford_flowers", "jpg", "OxfordFlowers", 2463, "FLW", "Flower102"),
    "food101": _coop("food-101", "images", "Food101", 30300, "Food"),
    "pets": _coop("oxford_pets", "images", "OxfordPets", 3669),
    "sun397": _coop("sun397", "SUN397", "SUN397", 19850, "SUN"),
    "ucf101": _coop("ucf101", "UCF-101-midframes", "UCF101", 3783, "UCF"),
    "imagenet": DatasetSpec(
        layout=ImageNetFolders("imagenet/images/val", imagenet_classes, train="imagenet/images/train"),
        group="imagenet",
        augmix=False,
        aliases=("I",),
        test_size=50000,
    ),
    "imagenet_a": _shift(ImageNetFolders("imagenet-adversarial/imagenet-a", imagenet_a_classes), 7500, "A", "I-A"),
    "imagenet_v2": _shift(ImageNetFolders(V2_FOLDER, imagenet_v2_classes), 10000, "V", "V2", "I-V2"),
    "imagenet_r": _shift(ImageNetFolders("imagenet-rendition/imagenet-r", imagenet_r_classes), 30000, "R", "I-R"),
    "imagenet_sketch": _shift(ImageNetFolders("imagenet-sketch/images", imagenet_classes), 50889, "K", "I-S", "I-K"),
}
# the embedded datasets, without AugMix, which would be half of the cost of a laptop's first run
for _name, _world in TINY_DATASETS.items():
    DATASETS[_name] = DatasetSpec(layout=Embedded(_name), group="tiny", root=Path(), flip=_world.flip, augmix=False)


def _in_group(group: str) -> tuple[str, ...]:
    return tuple(name for name, spec in DATASETS.items() if spec.group == group)


GROUPS: dict[str, tuple[str, ...]] = {
    "tiny": ("letters", "colours", "textures"),  # where TPT costs calibration (studies/embedded_default.md)
    "tiny_all": _in_group("tiny"),
    "fine_grained": _in_group("fine_grained"),
    "imagenet": _in_group("imagenet"),
    "natural_shifts": _in_group("shifts"),
    "all": tuple(DATASETS),
}


def expand(names: str | Iterable[str], custom: Iterable[str] = ()) -> list[str]:
    """Return datasets by name, alias, group or comma list; each once, in the order of the request.

    The groups `all` and `custom` include the user's own datasets. A folder `NAME=PATH` has its name.

    >>> expand(["FLW,pets", "Flower102", "natural_shifts"])
    ['flowers102', 'pets', 'imagenet_a', 'imagenet_v2', 'imagenet_r', 'imagenet_sketch']
    """
    custom = tuple(custom)
    expanded: dict[str, None] = {}  # as an ordered set
    texts = [names] if isinstance(names, str) else names
    for word in listed_names(texts):
        expanded.update(dict.fromkeys(_expand_word(word, custom)))
    if not expanded:
        raise InputError(f"no dataset is named; known: {', '.join([*GROUPS, 'custom', *DATASETS])}")
    return list(expanded)


def resolve(name: str, custom: Mapping[str, DatasetSpec]) -> tuple[str, DatasetSpec]:
    """Return the main name of one dataset, and its description."""
    names = expand(name, custom)
    if len(names) > 1:
        raise InputError(f"{name!r} means {len(names)} datasets, expected one")
    return names[0], custom.get(names[0]) or DATASETS[names[0]]


def is_folder(word: str) -> bool:
    """Return True for `NAME=PATH`, a user's folder with a name for it."""
    return "=" in word


def is_taken(name: str) -> bool:
    """Return True if a name already means a dataset or group, so that a user's dataset cannot have it."""
    return _plain(name) in _members_by_name() or _plain(name) == "custom"


def _expand_word(word: str, custom: tuple[str, ...]) -> tuple[str, ...]:
    if is_folder(word):
        word = word.partition("=")[0]
    if word in custom:
        return (word,)
    plain = _plain(word)
    if plain in ("all", "custom"):
        return _members_by_name().get(plain, ()) + custom
    if plain in _members_by_name():
        return _members_by_name()[plain]
    if "/" in word:
        raise InputError(f"dataset {word}: a folder needs a name; give NAME={word}")
    raise unknown("dataset", word, [*GROUPS, "custom", *DATASETS, *custom])


@cache
def _members_by_name() -> dict[str, tuple[str, ...]]:
    """Return the datasets that each name, alias or group means, by its plain form."""
    members = {_plain(group): names for group, names in GROUPS.items()}
    for name, spec in DATASETS.items():
        for alias in (name, *spec.aliases):
            members.setdefault(_plain(alias), (name,))
    return members


def _plain(name: str) -> str:
    """Return a name in the form in which names are compared: without capitals, hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")
