"""Lists that installed packages have: names of the classes of ImageNet and its shifts, and templates."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

from fpp_sweep.spec.errors import InputError


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
