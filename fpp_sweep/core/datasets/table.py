"""The table of all datasets. Folders below the data root are named as CoOp names them."""

from __future__ import annotations

from fpp_sweep.core.datasets.aircraft import Aircraft
from fpp_sweep.core.datasets.coop import SplitJson
from fpp_sweep.core.datasets.embedded import Embedded
from fpp_sweep.core.datasets.imagenet import (
    ImageNetFolders,
    imagenet_a_classes,
    imagenet_classes,
    imagenet_r_classes,
    imagenet_v2_classes,
)
from fpp_sweep.core.datasets.layout import Spec


def _coop(folder: str, images: str, title: str, test_size: int, *aliases: str) -> Spec:
    """A fine-grained dataset with CoOp's split file; its title there is an alias here."""
    images = f"{folder}/{images}".rstrip("/")
    layout = SplitJson(images=images, split_file=f"{folder}/split_zhou_{title}.json")
    return Spec(layout=layout, group="fine_grained", aliases=(title, *aliases), test_size=test_size)


def _shift(layout: ImageNetFolders, test_size: int, *aliases: str) -> Spec:
    """The scripts of C-TPT, O-TPT and FPP use AugMix on the shifts, though not on ImageNet."""
    return Spec(layout=layout, group="shifts", aliases=aliases, test_size=test_size)


def _tiny(name: str, *, flip: bool = True) -> Spec:
    """AugMix would be half of the cost of a laptop's first run: off here unless a config turns it on."""
    return Spec(layout=Embedded(name), group="tiny", flip=flip, augmix=False)


V2_FOLDER = "imagenetv2/imagenetv2-matched-frequency-format-val"

DATASETS: dict[str, Spec] = {
    "aircraft": Spec(
        layout=Aircraft("fgvc_aircraft"), group="fine_grained", aliases=("Air", "FGVCAircraft"), test_size=3333
    ),
    # folder, images in it, CoOp's name, published size of the test split, other names
    "caltech101": _coop("caltech-101", "101_ObjectCategories", "Caltech101", 2465, "Calt"),
    "cars": _coop("stanford_cars", "", "StanfordCars", 8041, "Car", "StanfordCar"),
    "dtd": _coop("dtd", "images", "DescribableTextures", 1692),
    "eurosat": _coop("eurosat", "2750", "EuroSAT", 8100, "SAT"),
    "flowers102": _coop("oxford_flowers", "jpg", "OxfordFlowers", 2463, "FLW", "Flower102"),
    "food101": _coop("food-101", "images", "Food101", 30300, "Food"),
    "pets": _coop("oxford_pets", "images", "OxfordPets", 3669),
    "sun397": _coop("sun397", "SUN397", "SUN397", 19850, "SUN"),
    "ucf101": _coop("ucf101", "UCF-101-midframes", "UCF101", 3783, "UCF"),
    "imagenet": Spec(
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
    "scenes": _tiny("scenes"),
    "digits": _tiny("digits", flip=False),
    "letters": _tiny("letters", flip=False),
    "colours": _tiny("colours"),
    "textures": _tiny("textures"),
    "objects": _tiny("objects"),
    "compositions": _tiny("compositions"),
}


def _of_group(*groups: str) -> tuple[str, ...]:
    return tuple(name for name, spec in DATASETS.items() if spec.group in groups)


GROUPS: dict[str, tuple[str, ...]] = {
    "tiny": ("scenes", "digits", "letters", "colours", "textures"),
    "tiny_all": _of_group("tiny"),
    "fine_grained": _of_group("fine_grained"),
    "imagenet": _of_group("imagenet"),
    "natural_shifts": _of_group("shifts"),
    "all": tuple(DATASETS),
}
