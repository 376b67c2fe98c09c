"""The value of `--model` and its parts.

`tiny` is the embedded model. Every other model is one of open_clip's architectures with published weights or a file:

    NAME[+gelu|+quickgelu]/TAG     ViT-B-16/openai
    NAME[+gelu|+quickgelu]:PATH    ViT-B-16:/models/ViT-B-16.pt

A misspelt name or tag is refused without importing open_clip, which takes ten seconds: architectures are the names of
its files, and tags are read from its source text.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpp_sweep.spec.errors import InputError, similar_names, unknown
from fpp_sweep.spec.files import user_path

if TYPE_CHECKING:
    from fpp_sweep.core.text.tower import Activation

EMBEDDED = "tiny"
EOT, VOCABULARY = 49407, 49408  # of CLIP's tokenizer
DEFAULT_EOS_ID = 2  # of open_clip

# settings of an open_clip config that may have any value
_ANY_VALUE = {
    "model": {"embed_dim", "vision_cfg", "text_cfg", "custom_text", "quick_gelu", "init_logit_scale"},
    "text_cfg": {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "pad_id", "eos_id"},
}
# values that other settings may have, besides those that turn them off
_SUPPORTED_VALUES = {"pool_type": ("argmax", "eos"), "proj_type": ("linear",)}
QUICK_SUFFIX = "-quickgelu"  # open_clip's names for its architectures with OpenAI's activation
ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu", "quickgelu": "quick_gelu"}  # by the user's word


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The parts of a model's name; weights are a tag or a path, except for the embedded model."""

    architecture: str  # open_clip's name, or that of the embedded model
    activation: Activation | None = None
    tag: str | None = None
    path: Path | None = None


def parse(model_name: str) -> ModelSpec:
    """Split a model's name; its architecture is checked, its tag or file is not.

    >>> parse("ViT-B-16+quickgelu:weights/b16.safetensors")
    ModelSpec(architecture='ViT-B-16', activation='quick_gelu', tag=None, path=PosixPath('weights/b16.safetensors'))
    """
    before, separator, weights = _split_at_first(model_name, "/:")
    architecture, plus, activation = before.partition("+")
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
    if plus and activation not in ACTIVATIONS:
        raise InputError(f"model {model_name!r}: {unknown('activation', activation, ACTIVATIONS)}")
    if not weights:
        hint = _tag_hint(architecture)
        raise InputError(f"model {model_name!r} has no weights: add /TAG ({hint}) or :PATH of a checkpoint")
    if separator == "/":
        return ModelSpec(architecture=architecture, activation=ACTIVATIONS.get(activation), tag=weights)
    return ModelSpec(architecture=architecture, activation=ACTIVATIONS.get(activation), path=user_path(weights))


def require_model(model_name: str) -> None:
    """Raise InputError if a model's name or tag is wrong or its file is missing; no weights and no library are loaded.

    The content of a file is checked when the model is loaded.
    """
    spec = parse(model_name)
    if spec.path is not None and not spec.path.is_file():
        raise InputError(f"model {model_name!r}: {spec.path} is not a file; give the path of a checkpoint")
    if spec.tag is not None:
        require_tag(spec.architecture, spec.tag)
    folder = _open_clip_folder()
    if folder is not None and spec.architecture != EMBEDDED:
        file = folder / "model_configs" / f"{spec.architecture}.json"
        require_supported(spec.architecture, json.loads(file.read_text(encoding="utf-8")))


def require_supported(name: str, config: Mapping[str, Any]) -> None:
    """Refuse text towers that differ from CLIP's: causal, pooled at EOT, projected without bias, CLIP's tokenizer."""
    text = config["text_cfg"]
    unsupported = [*_unsupported_settings("model", config), *_unsupported_settings("text_cfg", text)]
    if config["vision_cfg"].get("output_tokens"):
        unsupported.append("vision_cfg.output_tokens=True")
    if text.get("pool_type") == "eos" and text.get("eos_id", DEFAULT_EOS_ID) != EOT:
        unsupported.append(f"text_cfg.eos_id={text.get('eos_id', DEFAULT_EOS_ID)}, where CLIP's EOT is {EOT}")
    if text.get("vocab_size", VOCABULARY) != VOCABULARY:
        unsupported.append(f"text_cfg.vocab_size={text['vocab_size']}, where CLIP has {VOCABULARY}")
    if unsupported:
        raise InputError(f"model {name!r} is not supported, its text tower is not CLIP's: {'; '.join(unsupported)}")


def _unsupported_settings(section: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield `key=value` of settings that change what a tower computes."""
    prefix = ""
    if section != "model":
        prefix = f"{section}."
    for key, value in settings.items():
        is_off = not value
        if is_off or key in _ANY_VALUE[section] or value in _SUPPORTED_VALUES.get(key, ()):
            continue
        shown = value
        if isinstance(value, dict):
            shown = "..."
        yield f"{prefix}{key}={shown}"


def require_tag(name: str, tag: str) -> None:
    """Raise InputError if open_clip publishes no weights of an architecture under a tag."""
    stored_tag = tag.lower().replace("-", "_")  # as open_clip looks it up
    known_tags = tags_of(name)
    if stored_tag in known_tags:
        return
    base = name.removesuffix(QUICK_SUFFIX)
    if stored_tag in tags_of(base):
        raise InputError(f"model '{name}/{tag}': these weights were trained with gelu; write {base}/{tag}")
    if not known_tags:
        raise InputError(f"model {name!r} has no tags in open_clip; write {name}:PATH of a checkpoint")
    raise unknown(f"tag of {name}", tag, known_tags)


def _split_at_first(text: str, separators: str) -> tuple[str, str, str]:
    """Split a text at the first of some separators; without one, the last two parts are empty."""
    for index, character in enumerate(text):
        if character in separators:
            return text[:index], character, text[index + 1 :]
    return text, "", ""


def _tag_hint(name: str) -> str:
    known_tags = tags_of(name)
    if known_tags:
        return f"such as /{known_tags[0]}"
    return "open_clip knows none for it"


def architectures() -> list[str]:
    """Return open_clip's architectures, from the names of its files unless it is imported already."""
    open_clip = sys.modules.get("open_clip")
    if open_clip is not None:
        return list(open_clip.list_models())
    folder = _open_clip_folder()
    if folder is None:
        return []
    return sorted(path.stem for path in folder.glob("model_configs/*.json"))


def tags_of(name: str) -> list[str]:
    """Return the tags of an architecture's published weights, from open_clip's source unless it is imported already."""
    folder = _open_clip_folder()
    if "open_clip" not in sys.modules and folder is not None:
        with suppress(OSError, UnicodeDecodeError, SyntaxError, _OtherForm):
            return tags_in_source((folder / "pretrained.py").read_text(encoding="utf-8")).get(name, [])
    from open_clip.pretrained import list_pretrained_tags_by_model  # start-up time: open_clip takes ten seconds

    return list(list_pretrained_tags_by_model(name))


def _open_clip_folder() -> Path | None:
    package = importlib.util.find_spec("open_clip")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent


# --- reading the tags from the text of open_clip's module `pretrained`


class _OtherForm(Exception):
    """The text of a version of open_clip that writes its table of tags in another form."""


def tags_in_source(text: str) -> dict[str, list[str]]:
    """Return the tags of every architecture from the text of a module; nothing of it is run.

    The table is `_PRETRAINED = {"NAME": dict(TAG=settings(...), ...), ...}`, where a value may be the name of such a
    dict. Tags with `quick_gelu=True` also belong to the architecture NAME-quickgelu.
    """
    assigned: dict[str, ast.expr] = {}
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            assigned[statement.targets[0].id] = statement.value
    table = assigned.get("_PRETRAINED")
    if not isinstance(table, ast.Dict):
        raise _OtherForm
    found: dict[str, list[str]] = {}
    for key, value in zip(table.keys, table.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            raise _OtherForm
        if isinstance(value, ast.Name):
            value = assigned.get(value.id, value)
        settings_of_tags = _keywords(value)
        architecture = key.value
        found[architecture] = list(settings_of_tags)
        quick_tags = [tag for tag, settings in settings_of_tags.items() if _has_quick_gelu(settings)]
        if quick_tags:
            found[f"{architecture}{QUICK_SUFFIX}"] = quick_tags
    return found


def _keywords(call: ast.expr) -> dict[str, ast.expr]:
    """Return the arguments of a call such as `dict(a=1)`, by name."""
    if not isinstance(call, ast.Call):
        raise _OtherForm
    arguments = {}
    for keyword in call.keywords:
        if keyword.arg is None:  # **other
            raise _OtherForm
        arguments[keyword.arg] = keyword.value
    return arguments


def _has_quick_gelu(settings: ast.expr) -> bool:
    value = _keywords(settings).get("quick_gelu")
    return isinstance(value, ast.Constant) and bool(value.value)
