"""From the value of `--model` to a frozen `Clip`, by open_clip.

`tiny` is the embedded model. Every other model is one of open_clip's architectures with published weights or a file:

    NAME[+gelu|+quickgelu]/TAG     ViT-B-16/openai
    NAME[+gelu|+quickgelu]:PATH    ViT-B-16:/models/ViT-B-16.pt

The activation is the one that the weights were trained with. Where neither the tag nor the file determines it, and
open_clip has the architecture with both, the user has to give it; a contradiction is an error.

For weights from a file, images are preprocessed as CLIP's (bicubic, shorter side, CLIP's mean and deviation), unless
all tags of its NAME share other settings. open_clip takes ten seconds to import, so functions do it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.util
import json
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fpp_sweep.core.models.checkpoints import Checkpoint, read_checkpoint
from fpp_sweep.core.models.class_token import class_token_alone
from fpp_sweep.core.models.clip import Clip, Preprocess
from fpp_sweep.core.text.tower import Activation, TextTower
from fpp_sweep.spec.errors import InputError, similar_names, unknown

EMBEDDED = "tiny"
ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu", "quickgelu": "quick_gelu"}  # by the user's word
QUICK_SUFFIX = "-quickgelu"  # open_clip's names for its architectures with OpenAI's activation

# settings of an open_clip config that may have any value
_ANY_VALUE = {
    "model": {"embed_dim", "vision_cfg", "text_cfg", "custom_text", "quick_gelu", "init_logit_scale"},
    "text_cfg": {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "pad_id", "eos_id"},
}
# and the values that others may have, besides those that turn them off
_SUPPORTED_VALUES = {"pool_type": ("argmax", "eos"), "proj_type": ("linear",)}

_TEXT_PARTS = ("positional_embedding", "text_projection", "token_embedding.", "transformer.", "ln_final.")
_CONSTANTS = {"attn_mask"}  # the causal mask, which TorchScript archives list among the weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The parts of a model's name."""

    name: str
    activation: Activation | None = None
    tag: str | None = None
    path: Path | None = None


class BpeTokenizer:
    """CLIP's tokenizer: open_clip's, cleaning (ftfy, HTML, spaces, lower case) included."""

    def __init__(self) -> None:
        from open_clip.tokenizer import SimpleTokenizer

        self._tokenizer = SimpleTokenizer()
        self.sos: int = self._tokenizer.sot_token_id
        self.eot: int = self._tokenizer.eot_token_id
        self.vocabulary: int = self._tokenizer.vocab_size

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text))


def load(spec: str, device: str = "cpu") -> Clip:
    """The model that `--model` names: float32, frozen, in evaluation mode."""
    if spec == EMBEDDED:
        return _embedded(device)
    wanted = parse(spec)  # before open_clip is imported, which takes seconds
    from open_clip import get_model_config

    config: dict[str, Any] = get_model_config(wanted.name)
    tokenizer = BpeTokenizer()
    _require_supported(wanted.name, config, tokenizer)
    requested = _requested_activation(spec, wanted, config)
    if wanted.path is not None:
        preprocess = _preprocess(wanted.name, _shared_recipe(wanted.name), config)
        checkpoint = read_checkpoint(wanted.path.expanduser())
        activation = _activation_of_file(spec, wanted, requested, checkpoint, config)
    else:
        recipe = _tag_recipe(wanted)
        preprocess = _preprocess(spec, recipe, config)
        activation = _checked_activation(
            spec, requested, "quick_gelu" if recipe.get("quick_gelu") else "gelu", f"tag {wanted.tag!r}"
        )
        checkpoint = read_checkpoint(_download(wanted, recipe))
    model = _build(config, activation)
    _load_weights(model, checkpoint.state, f"{wanted.path or spec}: does not fit {wanted.name}")
    return _make_clip(spec, model, config["vision_cfg"], tokenizer, preprocess, 1.0, device)


def parse(spec: str) -> ModelSpec:
    """Split a model's name; its architecture is checked, its tag or file is not.

    >>> parse("ViT-B-16+quickgelu:weights/b16.safetensors")
    ModelSpec(name='ViT-B-16', activation='quick_gelu', tag=None, path=PosixPath('weights/b16.safetensors'))
    """
    cut = min((at for at in (spec.find("/"), spec.find(":")) if at >= 0), default=len(spec))
    architecture, kind, rest = spec[:cut], spec[cut : cut + 1], spec[cut + 1 :]
    name, plus, requested = architecture.partition("+")
    if name == EMBEDDED and spec != EMBEDDED:
        raise InputError(f"model {spec!r}: {EMBEDDED!r} is embedded and takes nothing after its name")
    if not name:
        raise InputError(f"model {spec!r} names no architecture; write NAME:PATH, such as ViT-B-16:{rest}")
    if name not in names():
        known = [EMBEDDED, *names()]
        if similar_names(spec, known, {}):  # such as ViT-B/16, as papers write it
            raise unknown("model", spec, known)
        raise unknown("model", name, known)
    if plus and requested not in ACTIVATIONS:
        raise InputError(f"model {spec!r}: {unknown('activation', requested, ACTIVATIONS)}")
    if not rest:
        hint = f"such as /{tags[0]}" if (tags := _tags(name)) else "open_clip knows none for it"
        raise InputError(f"model {spec!r} has no weights: add /TAG ({hint}) or :PATH of a checkpoint")
    activation = ACTIVATIONS[requested] if plus else None
    tag, path = (rest, None) if kind == "/" else (None, Path(rest))
    return ModelSpec(name=name, activation=activation, tag=tag, path=path)


def names() -> list[str]:
    """open_clip's architectures; from the names of its files unless it is imported already, which takes seconds."""
    if (imported := sys.modules.get("open_clip")) is not None:
        return list(imported.list_models())
    package = importlib.util.find_spec("open_clip")
    folders = package.submodule_search_locations if package else None
    return sorted(path.stem for folder in folders or () for path in Path(folder).glob("model_configs/*.json"))


def _tags(name: str) -> list[str]:
    from open_clip.pretrained import list_pretrained_tags_by_model

    return list(list_pretrained_tags_by_model(name))


def _require_supported(name: str, config: Mapping[str, Any], tokenizer: BpeTokenizer) -> None:
    """Refuse text towers that differ from CLIP's: causal, pooled at EOT, projected without bias, CLIP's tokenizer."""
    text = config["text_cfg"]
    unsupported = [*_unsupported("model", config), *_unsupported("text_cfg", text)]
    if config["vision_cfg"].get("output_tokens"):
        unsupported.append("vision_cfg.output_tokens=True")
    if text.get("pool_type") == "eos" and text.get("eos_id", 2) != tokenizer.eot:  # 2: open_clip's default
        unsupported.append(f"text_cfg.eos_id={text.get('eos_id', 2)}, where CLIP's EOT is {tokenizer.eot}")
    if text.get("vocab_size", tokenizer.vocabulary) != tokenizer.vocabulary:
        unsupported.append(f"text_cfg.vocab_size={text['vocab_size']}, where CLIP has {tokenizer.vocabulary}")
    if unsupported:
        raise InputError(f"model {name!r} is not supported, its text tower is not CLIP's: {'; '.join(unsupported)}")


def _unsupported(section: str, settings: Mapping[str, Any]) -> list[str]:
    return [
        f"{key if section == 'model' else f'{section}.{key}'}={value if not isinstance(value, dict) else '...'}"
        for key, value in settings.items()
        if value and key not in _ANY_VALUE[section] and value not in _SUPPORTED_VALUES.get(key, ())
    ]


def _requested_activation(spec: str, wanted: ModelSpec, config: Mapping[str, Any]) -> Activation | None:
    """The activation that the name asks for, by +gelu, +quickgelu or an architecture with QuickGELU."""
    if not config.get("quick_gelu"):
        return wanted.activation
    return _checked_activation(spec, wanted.activation, "quick_gelu", wanted.name)


def _checked_activation(spec: str, requested: Activation | None, actual: Activation, source: str) -> Activation:
    if requested not in (None, actual):
        words = {activation: word for word, activation in ACTIVATIONS.items()}
        raise InputError(
            f"model {spec!r}: {source} computes with {words[actual]}, which the name contradicts; "
            f"leave {words[requested or actual]} out of it"
        )
    return actual


def _activation_of_file(
    spec: str, wanted: ModelSpec, requested: Activation | None, checkpoint: Checkpoint, config: Mapping[str, Any]
) -> Activation:
    """The activation of a file's weights, from the file or as requested."""
    if checkpoint.origin == "openai":
        return _checked_activation(spec, requested, "quick_gelu", f"OpenAI's checkpoint {wanted.path}")
    if checkpoint.origin == "unknown" and requested is None and f"{wanted.name}{QUICK_SUFFIX}" in names():
        raise InputError(
            f"{wanted.path} does not tell which activation it was trained with; write "
            f"{wanted.name}+gelu:{wanted.path} or {wanted.name}+quickgelu:{wanted.path}"
        )
    return requested or ("quick_gelu" if config.get("quick_gelu") else "gelu")


def _tag_recipe(wanted: ModelSpec) -> dict[str, Any]:
    """open_clip's settings of a tag: address, preprocessing, activation."""
    from open_clip.pretrained import get_pretrained_cfg

    recipe: dict[str, Any] = get_pretrained_cfg(wanted.name, wanted.tag)
    if recipe:
        return recipe
    base = wanted.name.removesuffix(QUICK_SUFFIX)
    if get_pretrained_cfg(base, wanted.tag):
        raise InputError(
            f"model '{wanted.name}/{wanted.tag}': these weights were trained with gelu; write {base}/{wanted.tag}"
        )
    if not _tags(wanted.name):
        raise InputError(f"model {wanted.name!r} has no tags in open_clip; write {wanted.name}:PATH of a checkpoint")
    raise unknown(f"tag of {wanted.name}", wanted.tag or "", _tags(wanted.name))


def _shared_recipe(name: str) -> dict[str, Any]:
    """The preprocessing that all tags of an architecture share, if it differs from CLIP's."""
    from open_clip.pretrained import get_pretrained_cfg

    recipes = [get_pretrained_cfg(name, tag) for tag in _tags(name)]
    keys = ("mean", "std", "interpolation", "resize_mode")
    shared = {tuple(recipe[key] for key in keys) for recipe in recipes}
    return dict(zip(keys, shared.pop(), strict=True)) if len(shared) == 1 else {}


def _preprocess(model: str, recipe: Mapping[str, Any], config: Mapping[str, Any]) -> Preprocess:
    size = config["vision_cfg"].get("image_size", 224)  # open_clip's default
    for key, supported in (("interpolation", "bicubic"), ("resize_mode", "shortest")):
        if recipe.get(key, supported) != supported:
            raise InputError(
                f"model {model!r} is not supported: its images need {key}={recipe[key]}, we do {supported}"
            )
    if not isinstance(size, int):
        raise InputError(f"model {model!r} is not supported: its images are not square but {size}")
    return Preprocess(size=size, **{key: tuple(recipe[key]) for key in ("mean", "std") if key in recipe})


def _download(wanted: ModelSpec, recipe: dict[str, Any]) -> Path:
    """The file of a tag's weights, downloaded unless it is cached."""
    from open_clip.pretrained import download_pretrained

    try:
        with _quiet():
            return Path(download_pretrained(recipe))
    except Exception as error:  # from the hub's client, the network or the disk
        raise InputError(
            f"model '{wanted.name}/{wanted.tag}': could not fetch its weights; connect to the network, "
            f"or download them elsewhere and write {wanted.name}:PATH"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """open_clip and its hub client without progress bars, warnings and log lines."""
    hub: Any = importlib.import_module("huggingface_hub.utils")  # a dependency of open_clip
    bars, level = not hub.are_progress_bars_disabled(), logging.root.manager.disable
    hub.disable_progress_bars()
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        if bars:
            hub.enable_progress_bars()


def _build(config: Mapping[str, Any], activation: Activation) -> Any:
    """The architecture; initialising it leaves the caller's random state as it was."""
    from open_clip.model import CLIP, CustomTextCLIP

    settings = {key: value for key, value in config.items() if key != "custom_text"}
    settings["vision_cfg"] = {**config["vision_cfg"], "timm_model_pretrained": False}
    settings["quick_gelu"] = activation == "quick_gelu"
    kind = CustomTextCLIP if config.get("custom_text") else CLIP
    with _quiet(), torch.random.fork_rng(devices=[]):
        return kind(**settings)


def _load_weights(model: nn.Module, state: Mapping[str, Tensor], failure: str) -> None:
    """Load weights that fit in every name and shape; nothing is resized."""
    needed = model.state_dict()
    given = {name.removeprefix("text."): value for name, value in state.items()}
    if hasattr(model, "text"):
        given = {f"text.{name}" if name.startswith(_TEXT_PARTS) else name: value for name, value in given.items()}
    given = {name: value for name, value in given.items() if name.removeprefix("text.") not in _CONSTANTS}
    if "logit_scale" in given and given["logit_scale"].numel() == 1:  # () or (1,), by version
        given["logit_scale"] = given["logit_scale"].reshape(needed["logit_scale"].shape)
    for name, value in needed.items():
        if name in given and given[name].shape != value.shape:
            shapes = f"{tuple(given[name].shape)} instead of {tuple(value.shape)}"
            raise InputError(f"{failure}: {name} has shape {shapes}")
        if name in given and value.is_floating_point() != given[name].is_floating_point():
            raise InputError(f"{failure}: {name} holds {given[name].dtype}, not {value.dtype}")
    missing = [name for name in needed if name not in given]
    extra = [name for name in given if name not in needed]
    if missing or extra:
        parts = [(missing, "missing"), (extra, "too many")]
        raise InputError(
            f"{failure}: " + ", ".join(f"{len(group)} weights {word} ({group[0]})" for group, word in parts if group)
        )
    model.load_state_dict(given)


def _embedded(device: str) -> Clip:
    from fpp_sweep.tiny.model import IMAGE_MEAN, IMAGE_SIZE, IMAGE_STD, load, trained_ids

    model, metadata = load()
    preprocess = Preprocess(size=IMAGE_SIZE, mean=IMAGE_MEAN, std=IMAGE_STD)
    scale = float(metadata["embedding_scale"])
    clip = _make_clip(EMBEDDED, model, {EMBEDDED: True}, BpeTokenizer(), preprocess, scale, device)
    return dataclasses.replace(clip, trained_tokens=trained_ids())


def _make_clip(
    name: str,
    model: Any,
    vision: Mapping[str, Any],
    tokenizer: BpeTokenizer,
    preprocess: Preprocess,
    embedding_scale: float,
    device: str,
) -> Clip:
    model = model.float().eval().requires_grad_(False)
    text = getattr(model, "text", model)
    activation, heads = _activation(text), text.transformer.resblocks[0].attn.num_heads
    text_state = {key: value for key, value in text.state_dict().items() if not key.startswith("visual.")}
    image_digest = _digest([json.dumps(vision, sort_keys=True), activation, preprocess], model.visual.state_dict())
    digest = _digest([image_digest, activation, heads], {**text_state, "logit_scale": model.logit_scale})
    return Clip(
        name=name,
        visual=class_token_alone(model.visual).to(device),
        text=TextTower.from_state(text_state, heads=heads, activation=activation).on(device),
        tokenizer=tokenizer,
        logit_scale=model.logit_scale.exp().item(),
        preprocess=preprocess,
        embedding_scale=embedding_scale,
        image_digest=image_digest,
        digest=digest,
    )


def _activation(text: Any) -> Activation:
    """From the modules that were built, so that it is what they compute."""
    from open_clip.transformer import QuickGELU

    return "quick_gelu" if isinstance(text.transformer.resblocks[0].mlp.gelu, QuickGELU) else "gelu"


def _digest(facts: list[object], tensors: Mapping[str, Tensor]) -> str:
    """A hash of weights and of the other facts that determine what they compute."""
    with ThreadPoolExecutor() as threads:  # hashing releases the interpreter lock
        parts = list(threads.map(_tensor_digest, sorted(tensors.items())))
    return hashlib.sha256(repr([facts, parts]).encode()).hexdigest()


def _tensor_digest(item: tuple[str, Tensor]) -> tuple[str, str, tuple[int, ...], str]:
    name, value = item
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return name, str(value.dtype), tuple(value.shape), hashlib.sha256(content).hexdigest()
