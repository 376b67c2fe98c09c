"""The value of `--model` and its parts.

`tiny` is the embedded model. Every other model is one of open_clip's architectures with published weights or a file:

    NAME/TAG     ViT-B-16/openai
    NAME:PATH    ViT-B-16-quickgelu:/models/ViT-B-16.pt

open_clip takes seconds to import, so a name is checked against the names of its files of settings.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpp_sweep.spec.errors import InputError, similar_names, unknown
from fpp_sweep.spec.files import user_path

EMBEDDED = "tiny"
QUICK_SUFFIX = "-quickgelu"  # open_clip's names for its architectures with OpenAI's activation


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The parts of a model's name; weights are a tag or a path, except for the embedded model."""

    architecture: str  # open_clip's name, or that of the embedded model
    tag: str | None = None
    path: Path | None = None


def parse(model_name: str) -> ModelSpec:
    """Split a model's name; its architecture is checked, its tag or file is not.

    >>> parse("ViT-B-16-quickgelu:weights/b16.safetensors")
    ModelSpec(architecture='ViT-B-16-quickgelu', tag=None, path=PosixPath('weights/b16.safetensors'))
    """
    architecture, separator, weights = [*re.split("([/:])", model_name, maxsplit=1), "", ""][:3]
    if model_name == EMBEDDED:
        return ModelSpec(architecture=EMBEDDED)
    if architecture == EMBEDDED:
        raise InputError(f"model {model_name!r}: {EMBEDDED!r} is embedded and takes nothing after its name")
    if not architecture:
        raise InputError(f"model {model_name!r} names no architecture; write NAME:PATH, such as ViT-B-16:{weights}")
    if architecture not in architectures():
        valid_names = [EMBEDDED, *architectures()]
        if similar_names(model_name, valid_names):  # such as ViT-B/16, as papers write it
            raise unknown("model", model_name, valid_names)
        raise unknown("model", architecture, valid_names)
    if not weights:
        raise InputError(f"model {model_name!r} has no weights: add /TAG (such as /openai) or :PATH of a checkpoint")
    if separator == ":":
        return ModelSpec(architecture=architecture, path=user_path(weights))
    return ModelSpec(architecture=architecture, tag=weights)


def require_model(model_name: str) -> None:
    """Raise InputError if a model cannot be loaded by its name; no weights and no library are loaded.

    Its tag, and the content of a file, are checked when the model is loaded.
    """
    spec = parse(model_name)
    if spec.path is not None and not spec.path.is_file():
        raise InputError(f"model {model_name!r}: {spec.path} is not a file; give the path of a checkpoint")
    if spec.architecture != EMBEDDED:
        require_supported(spec.architecture, architecture_settings(spec.architecture))


def require_supported(name: str, settings: Mapping[str, Any]) -> None:
    """Raise InputError if an architecture cannot be computed here, or if its tokenizer's library is missing."""
    text, image_size = settings["text_cfg"], settings["vision_cfg"].get("image_size", 224)
    if "hf_model_name" in text:
        raise InputError(
            f"model {name!r} is not supported: its text tower is a model of transformers ({text['hf_model_name']})"
        )
    if not isinstance(image_size, int):
        raise InputError(f"model {name!r} is not supported: its images are not square but {image_size}")
    tokenizer = text.get("hf_tokenizer_name")
    if tokenizer and importlib.util.find_spec("transformers") is None:
        raise InputError(
            f"model {name!r} needs the tokenizer {tokenizer} of Hugging Face; pip install transformers sentencepiece"
        )


def import_open_clip() -> Any:
    """Return open_clip, which takes ten seconds to import; its hub client draws no bars of progress in a worker."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return importlib.import_module("open_clip")


def architectures() -> list[str]:
    """Return open_clip's architectures, from the names of its files unless it is imported already."""
    open_clip = sys.modules.get("open_clip")
    if open_clip is not None:
        return list(open_clip.list_models())
    return sorted(path.stem for path in _settings_folder().glob("*.json"))


def architecture_settings(name: str) -> dict[str, Any]:
    """Return open_clip's settings of an architecture."""
    open_clip = sys.modules.get("open_clip")
    if open_clip is not None:
        return dict(open_clip.get_model_config(name))
    settings: dict[str, Any] = json.loads((_settings_folder() / f"{name}.json").read_text(encoding="utf-8"))
    return settings


def _settings_folder() -> Path:
    package = importlib.util.find_spec("open_clip")
    assert package is not None, "a dependency of this package"
    assert package.origin is not None, "it has files"
    return Path(package.origin).parent / "model_configs"
