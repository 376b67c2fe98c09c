"""The embedded model, and models of open_clip with published weights or those of a file.

The activation is the one that the weights were trained with. Where neither the tag nor the file determines it, and
open_clip has the architecture with both, the user has to name it; a contradiction is an error.

For weights from a file, images are preprocessed as CLIP's (bicubic, shorter side, CLIP's mean and deviation), unless
all tags of the architecture share other settings. A warning names the tags that need others than the file gets. This
module imports open_clip, which takes ten seconds.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from open_clip import get_model_config
from open_clip.constants import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
from open_clip.model import CLIP, CustomTextCLIP
from open_clip.pretrained import download_pretrained, get_pretrained_cfg
from torch import Tensor, nn

from fpp_sweep.core.models.building import BpeTokenizer, make_clip
from fpp_sweep.core.models.checkpoints import Checkpoint, read_checkpoint
from fpp_sweep.core.models.clip import Clip, Preprocess
from fpp_sweep.core.models.model_names import (
    ACTIVATIONS,
    EMBEDDED,
    QUICK_SUFFIX,
    ModelSpec,
    architectures,
    require_supported,
    require_tag,
    tags_of,
)
from fpp_sweep.core.text.tower import Activation
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import warn_once
from fpp_sweep.tiny import model as tiny

IMAGE_SIZE = 224  # open_clip's default
# settings of a tag, with CLIP's values
_CLIPS_PREPROCESSING: dict[str, Any] = {
    "mean": OPENAI_DATASET_MEAN,
    "std": OPENAI_DATASET_STD,
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}

_TEXT_PARTS = ("positional_embedding", "text_projection", "token_embedding.", "transformer.", "ln_final.")
_CONSTANTS = {"attn_mask"}  # the causal mask, which TorchScript archives list among the weights


def load_embedded(device: str) -> Clip:
    """Load the embedded model."""
    model, metadata = tiny.load()
    clip = make_clip(
        name=EMBEDDED,
        model=model,
        vision={EMBEDDED: True},
        tokenizer=BpeTokenizer(),
        preprocess=Preprocess(size=tiny.IMAGE_SIZE, mean=tiny.IMAGE_MEAN, std=tiny.IMAGE_STD),
        embedding_scale=float(metadata["embedding_scale"]),
        device=device,
    )
    return replace(clip, trained_tokens=tiny.trained_ids())


def load_open_clip(model_name: str, spec: ModelSpec, device: str) -> Clip:
    """Load an architecture of open_clip with its published weights or those of a file."""
    config: dict[str, Any] = get_model_config(spec.architecture)
    tokenizer = BpeTokenizer()
    require_supported(spec.architecture, config)
    requested = _requested_activation(model_name, spec, config)
    if spec.path is not None:
        preprocess = _preprocess(spec.architecture, _shared_recipe(spec.architecture), config)
        checkpoint = read_checkpoint(spec.path)
        activation = _activation_of_file(model_name, spec, requested, checkpoint, config)
        if not checkpoint.is_openai:
            _warn_of_other_preprocessing(spec, activation)
    else:
        recipe = _tag_recipe(spec)
        preprocess = _preprocess(model_name, recipe, config)
        activation = _check_activation(model_name, requested, _activation_setting(recipe), f"tag {spec.tag!r}")
        checkpoint = read_checkpoint(_download(spec, recipe))
    model = _build(config, activation)
    _load_weights(model, checkpoint.state, f"{spec.path or model_name}: does not fit {spec.architecture}")
    return make_clip(
        name=model_name,
        model=model,
        vision=config["vision_cfg"],
        tokenizer=tokenizer,
        preprocess=preprocess,
        embedding_scale=1.0,
        device=device,
    )


def _preprocess(model: str, recipe: Mapping[str, Any], config: Mapping[str, Any]) -> Preprocess:
    size = config["vision_cfg"].get("image_size", IMAGE_SIZE)
    for key, supported in (("interpolation", "bicubic"), ("resize_mode", "shortest")):
        if recipe.get(key, supported) != supported:
            raise InputError(
                f"model {model!r} is not supported: its images need {key}={recipe[key]}, we do {supported}"
            )
    if not isinstance(size, int):
        raise InputError(f"model {model!r} is not supported: its images are not square but {size}")
    statistics = {key: tuple(recipe[key]) for key in ("mean", "std") if key in recipe}
    return Preprocess(size=size, **statistics)


# --- which activation


def _activation_setting(settings: Mapping[str, Any]) -> Activation:
    """Return the activation in an open_clip config or in the settings of a tag."""
    if settings.get("quick_gelu"):
        return "quick_gelu"
    return "gelu"


def _requested_activation(model_name: str, spec: ModelSpec, config: Mapping[str, Any]) -> Activation | None:
    """Return the activation that the name asks for, by +gelu, +quickgelu or an architecture with QuickGELU."""
    if not config.get("quick_gelu"):
        return spec.activation
    return _check_activation(model_name, spec.activation, "quick_gelu", spec.architecture)


def _check_activation(model_name: str, requested: Activation | None, actual: Activation, source: str) -> Activation:
    """Return the actual activation; raise InputError if another one was requested."""
    if requested not in (None, actual):
        words = {activation: word for word, activation in ACTIVATIONS.items()}
        raise InputError(
            f"model {model_name!r}: {source} computes with {words[actual]}, which the name contradicts; "
            f"leave {words[requested or actual]} out of it"
        )
    return actual


def _activation_of_file(
    model_name: str, spec: ModelSpec, requested: Activation | None, checkpoint: Checkpoint, config: Mapping[str, Any]
) -> Activation:
    """Return the activation of a file's weights, from the file or as requested."""
    if checkpoint.is_openai:
        return _check_activation(model_name, requested, "quick_gelu", f"OpenAI's checkpoint {spec.path}")
    if requested is not None:
        return requested
    if f"{spec.architecture}{QUICK_SUFFIX}" in architectures():
        raise InputError(
            f"{spec.path} does not tell which activation it was trained with; write "
            f"{spec.architecture}+gelu:{spec.path} or {spec.architecture}+quickgelu:{spec.path}"
        )
    return _activation_setting(config)


# --- published weights


def _tag_recipe(spec: ModelSpec) -> dict[str, Any]:
    """Return open_clip's settings of a tag: address, preprocessing, activation."""
    tag = spec.tag or ""
    require_tag(spec.architecture, tag)
    recipe: dict[str, Any] = get_pretrained_cfg(spec.architecture, tag)
    return recipe


def _shared_recipe(name: str) -> dict[str, Any]:
    """Return the preprocessing that all tags of an architecture share; empty if they differ or there are none."""
    settings = []
    for tag in tags_of(name):
        recipe = get_pretrained_cfg(name, tag)
        settings.append({key: recipe[key] for key in _CLIPS_PREPROCESSING})
    if settings and all(recipe == settings[0] for recipe in settings):
        return settings[0]
    return {}


def _is_preprocessing_of_files(name: str, recipe: Mapping[str, Any]) -> bool:
    """Return True if a tag's images need the preprocessing that weights of this architecture get from a file."""
    settings = {**_CLIPS_PREPROCESSING, **_shared_recipe(name)}
    return all(recipe[key] == setting for key, setting in settings.items())


def _warn_of_other_preprocessing(spec: ModelSpec, activation: Activation) -> None:
    """Warn if a file may hold the weights of a tag whose images need other preprocessing than the file's get."""
    models = []
    for tag in tags_of(spec.architecture):
        recipe = get_pretrained_cfg(spec.architecture, tag)
        may_be_of_tag = _activation_setting(recipe) == activation
        if may_be_of_tag and not _is_preprocessing_of_files(spec.architecture, recipe):
            models.append(f"{spec.architecture}/{tag}")
    if models:
        warn_once(
            f"{spec.path}: its images are preprocessed as CLIP's, which gives wrong results for the weights of "
            f"{', '.join(models)}; load those by that name"
        )


def _download(spec: ModelSpec, recipe: dict[str, Any]) -> Path:
    """Return the file of a tag's weights; download it unless it is cached."""
    try:
        with _quiet():
            return Path(download_pretrained(recipe))
    except Exception as error:  # from the hub's client, the network or the disk
        advice = f"download them elsewhere and write {spec.architecture}:PATH"
        if not _is_preprocessing_of_files(spec.architecture, recipe):
            advice = "copy the cache of Hugging Face from a machine that has them"
        raise InputError(
            f"model '{spec.architecture}/{spec.tag}': could not fetch its weights; connect to the network, or {advice}"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Run open_clip and its hub client without progress bars, warnings and log lines."""
    hub: Any = importlib.import_module("huggingface_hub.utils")  # a dependency of open_clip
    bars_enabled = not hub.are_progress_bars_disabled()
    log_level = logging.root.manager.disable
    hub.disable_progress_bars()
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(log_level)
        if bars_enabled:
            hub.enable_progress_bars()


# --- the model and its weights


def _build(config: Mapping[str, Any], activation: Activation) -> nn.Module:
    """Build the architecture; initialising it leaves the caller's random state as it was."""
    settings = {key: value for key, value in config.items() if key != "custom_text"}
    settings["vision_cfg"] = {**config["vision_cfg"], "timm_model_pretrained": False}
    settings["quick_gelu"] = activation == "quick_gelu"
    architecture: type[nn.Module] = CLIP
    if config.get("custom_text"):
        architecture = CustomTextCLIP
    with _quiet(), torch.random.fork_rng(devices=[]):
        return architecture(**settings)


def _load_weights(model: nn.Module, state: Mapping[str, Tensor], failure: str) -> None:
    """Load weights that fit in every name and shape; nothing is resized."""
    needed = model.state_dict()
    weights = _named_as(model, state)
    if "logit_scale" in weights and weights["logit_scale"].numel() == 1:  # shape () or (1,), by version
        weights["logit_scale"] = weights["logit_scale"].reshape(needed["logit_scale"].shape)
    for name, value in needed.items():
        if name in weights:
            _require_fit(name, weights[name], value, failure)
    missing = [name for name in needed if name not in weights]
    extra = [name for name in weights if name not in needed]
    problems = []
    if missing:
        problems.append(f"{len(missing)} weights missing ({missing[0]})")
    if extra:
        problems.append(f"{len(extra)} weights too many ({extra[0]})")
    if problems:
        raise InputError(f"{failure}: {', '.join(problems)}")
    model.load_state_dict(weights)


def _named_as(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights under the model's names: open_clip has text towers with and without a prefix."""
    has_text_module = hasattr(model, "text")
    weights = {}
    for name, value in state.items():
        bare_name = name.removeprefix("text.")
        if bare_name in _CONSTANTS:
            continue
        if has_text_module and bare_name.startswith(_TEXT_PARTS):
            weights[f"text.{bare_name}"] = value
        else:
            weights[bare_name] = value
    return weights


def _require_fit(name: str, weight: Tensor, needed: Tensor, failure: str) -> None:
    if weight.shape != needed.shape:
        raise InputError(f"{failure}: {name} has shape {tuple(weight.shape)} instead of {tuple(needed.shape)}")
    if weight.is_floating_point() != needed.is_floating_point():
        raise InputError(f"{failure}: {name} holds {weight.dtype}, not {needed.dtype}")
