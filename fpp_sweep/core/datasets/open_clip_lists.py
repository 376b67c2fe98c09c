"""Lists that open_clip has: names of ImageNet's classes, and templates for zero-shot classification."""

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
