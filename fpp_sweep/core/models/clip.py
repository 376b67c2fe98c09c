"""A frozen CLIP: an image tower, a text tower that takes embeddings, tokenizer and preprocessing; and loading one.

The activation is the one that the weights were trained with. A tag knows it; for a file, the architecture's name says
it, as in open_clip. No code in a file is ever run."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import logging
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fpp_sweep.core.compute import upcast
from fpp_sweep.core.models.names import (
    EMBEDDED,
    QUICK_SUFFIX,
    ModelSpec,
    architecture_settings,
    architectures,
    import_open_clip,
    parse,
    require_supported,
)
from fpp_sweep.core.text.padded import PaddedTower, RowTokenizer
from fpp_sweep.core.text.tower import Activation, TextTower, Tokenizer
from fpp_sweep.spec.errors import InputError, first_line, unknown
from fpp_sweep.spec.messages import warn_once


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocess:
    """The steps from an image to the image tower's input: resize to a square, then normalise."""

    size: int  # pixels of a side
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)  # CLIP's
    std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    resize_mode: Literal["shortest", "squash"] = "shortest"  # the shorter side, then a crop; or both sides


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clip:
    """A CLIP on one device, frozen and in evaluation mode."""

    name: str  # as passed to --model
    visual: nn.Module
    text: TextTower | PaddedTower
    tokenizer: Tokenizer | RowTokenizer
    logit_scale: float
    preprocess: Preprocess
    embedding_scale: float  # the scale of its token embeddings relative to those of OpenAI's ViT-B/16
    image_digest: str  # digest of the image tower's weights and preprocessing; in the keys of features
    digest: str  # digest of all weights
    trained_tokens: frozenset[int] | None = None  # None: all tokens

    @property
    def device(self) -> torch.device:
        return self.text.device

    def has_untrained_words(self, text: str) -> bool:
        """Return True if the text has words that the model was never trained on."""
        if self.trained_tokens is None:
            return False
        tokens = self.tokenizer.encode(text.replace("_", " "))
        return not self.trained_tokens.issuperset(tokens)

    @torch.no_grad()
    def image_features(self, pixels: Tensor) -> Tensor:
        """Return (N, D) unit features in float32 of (N, 3, size, size) normalised pixels."""
        # convolutions are faster with the channels of a pixel side by side, on CPUs too
        pixels = pixels.to(self.device, non_blocking=True).contiguous(memory_format=torch.channels_last)
        return F.normalize(upcast(self.visual(pixels)), dim=-1)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return every tensor of a `torch.save` file; nested names are joined by dots."""
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(_PLACEHOLDERS):
            warnings.simplefilter("ignore")
            can_be_mapped = zipfile.is_zipfile(path)  # then an optimizer's state is never read from disk
            return dict(_flatten(torch.load(path, map_location="cpu", weights_only=True, mmap=can_be_mapped)))
    except Exception as error:  # on damaged files torch raises errors without a common base class
        raise InputError(f"{path}: {why_unreadable(error)}") from error


def why_unreadable(error: Exception) -> str:
    """Return in one line why torch could not read a file."""
    code = re.search(r"GLOBAL ([\w.]+)", str(error))
    if code is not None:
        return f"refused, reading it would run code ({code[1]}); only plain weights are read"
    if isinstance(error, pickle.UnpicklingError):
        return "not a file of plain weights; damaged, or not a PyTorch checkpoint"
    return f"truncated, damaged, or not a checkpoint ({type(error).__name__})"  # its text may quote another file's


class Placeholder:
    """A replacement for an optimizer or scheduler, which keeps nothing."""

    def __init__(self, *_: object) -> None:
        """Accept any arguments."""

    def __setstate__(self, state: object) -> None:
        """Drop the state."""


def _empty(*_: object) -> dict[Any, Any]:
    return {}


def _replacements() -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    """Return what replaces the classes of optimizers and schedulers, which CoOp's checkpoints hold as objects."""
    replacements: list[Any] = [(_empty, "collections.defaultdict"), (_empty, "builtins.dict")]
    for module in (torch.optim, torch.optim.lr_scheduler):
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__.startswith("torch.optim."):
                replacements.append((Placeholder, f"{cls.__module__}.{cls.__qualname__}"))
    return replacements


_PLACEHOLDERS = _replacements()


def _flatten(content: object, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of nested mappings, with its name."""
    if isinstance(content, Tensor):
        yield prefix, content
    if isinstance(content, Mapping):
        for name, value in content.items():
            yield from _flatten(value, f"{prefix}.{name}".removeprefix("."))


EOT = 49407  # the token with which CLIP's tokenizer ends a text
# settings of a text tower that may have any value in `TextTower`; others must be off
CLIPS_TEXT_SETTINGS = {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "pad_id", "eos_id"}
PREPROCESSING = ("mean", "std", "interpolation", "resize_mode")  # settings of a tag


class BpeTokenizer:
    """CLIP's tokenizer: open_clip's, cleaning (ftfy, HTML, spaces, lower case) included."""

    def __init__(self) -> None:
        self._tokenizer = _simple_tokenizer()
        self.sos: int = self._tokenizer.sot_token_id
        self.eot: int = self._tokenizer.eot_token_id
        self.vocabulary: int = self._tokenizer.vocab_size

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text))


@cache
def _simple_tokenizer() -> Any:
    return import_open_clip().SimpleTokenizer()  # reads a file of all merges


def load(model_name: str, device: str = "cpu") -> Clip:
    """Load the model that `--model` names: float32, frozen, in evaluation mode."""
    spec = parse(model_name)
    if spec.architecture == EMBEDDED:
        return _load_embedded(device)
    settings = architecture_settings(spec.architecture)
    require_supported(spec.architecture, settings)
    tokenizer = _tokenizer(spec.architecture, settings)
    quick, recipe = _file_recipe(model_name, spec, settings) if spec.path else _tag_recipe(spec)
    preprocess = Preprocess(size=settings["vision_cfg"].get("image_size", 224), **recipe)
    return make_clip(
        name=model_name,
        model=_create(model_name, spec, quick=quick),
        settings=settings,
        tokenizer=tokenizer,
        preprocess=preprocess,
        device=device,
    )


def _load_embedded(device: str) -> Clip:
    from fpp_sweep.tiny import model as tiny  # start-up time: it imports open_clip

    model, metadata = tiny.load()
    clip = make_clip(
        name=EMBEDDED,
        model=model,
        settings={"vision_cfg": {EMBEDDED: True}, "text_cfg": {}},
        tokenizer=BpeTokenizer(),
        preprocess=Preprocess(size=tiny.IMAGE_SIZE, mean=tiny.IMAGE_MEAN, std=tiny.IMAGE_STD),
        device=device,
    )
    scale = float(metadata["embedding_scale"])
    return replace(clip, embedding_scale=scale, trained_tokens=tiny.trained_ids())


# --- what a name decides


def _tokenizer(name: str, settings: Mapping[str, Any]) -> Tokenizer | RowTokenizer:
    """Return the tokenizer of an architecture; fetch it if it is one of Hugging Face that is not cached."""
    if has_clips_text_tower(settings):
        return BpeTokenizer()
    try:
        with _quiet():
            return RowTokenizer(import_open_clip().get_tokenizer(name))
    except Exception as error:  # from the hub's client, the network or the disk
        tokenizer = settings["text_cfg"].get("hf_tokenizer_name")
        raise InputError(
            f"model {name!r}: could not load its tokenizer {tokenizer}; connect to the network, or copy the cache of "
            f"Hugging Face from a machine that has it ({first_line(error)})"
        ) from error


def has_clips_text_tower(settings: Mapping[str, Any]) -> bool:
    """Return True for CLIP's text tower: causal, pooled at EOT, projected without bias, with CLIP's tokenizer."""
    for key, value in settings["text_cfg"].items():
        is_pooled_at_eot = key == "pool_type" and (
            value == "argmax" or (value == "eos" and settings["text_cfg"].get("eos_id") == EOT)
        )
        is_plain = (key, value) == ("proj_type", "linear") or is_pooled_at_eot
        if value and key not in CLIPS_TEXT_SETTINGS and not is_plain:
            return False
    return True


def _tag_recipe(spec: ModelSpec) -> tuple[bool, dict[str, Any]]:
    """Return whether the weights of a tag compute with QuickGELU, and the preprocessing of their images."""
    open_clip = import_open_clip()
    name, tag = spec.architecture, spec.tag or ""
    tags = open_clip.list_pretrained_tags_by_model(name)
    recipe = open_clip.get_pretrained_cfg(name, tag)
    if not tags:
        raise InputError(f"model {name!r} has no tags in open_clip; write {name}:PATH of a checkpoint")
    if not recipe:
        raise unknown(f"tag of {name}", tag, tags)
    return bool(recipe.get("quick_gelu")), _preprocessing(recipe)


def _preprocessing(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preprocessing in open_clip's settings of a tag."""
    found = {key: recipe[key] for key in PREPROCESSING}
    return {**found, "mean": tuple(recipe["mean"]), "std": tuple(recipe["std"])}


def _file_recipe(model_name: str, spec: ModelSpec, settings: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Return whether a file's weights compute with QuickGELU, and the preprocessing of their images.

    The images are preprocessed as those of all tags with this architecture and activation, or else as CLIP's.
    """
    open_clip = import_open_clip()
    name = spec.architecture
    quick = bool(settings.get("quick_gelu"))
    if f"{name}{QUICK_SUFFIX}" in architectures():
        warn_once(
            f"{model_name}: computes with GELU; for weights that were trained with QuickGELU, as OpenAI's, write "
            f"{name}{QUICK_SUFFIX}:{spec.path}"
        )
    recipes = {}
    for tag in open_clip.list_pretrained_tags_by_model(name):
        recipe = open_clip.get_pretrained_cfg(name, tag)
        if bool(recipe.get("quick_gelu")) == quick:
            recipes[f"{name}/{tag}"] = _preprocessing(recipe)
    distinct = list(recipes.values())
    if distinct and all(recipe == distinct[0] for recipe in distinct):
        return quick, distinct[0]
    clips = Preprocess(size=0)
    others = [tag for tag, recipe in recipes.items() if replace(clips, **recipe) != clips]
    if others:
        warn_once(
            f"{model_name}: its images are preprocessed as CLIP's, which gives wrong results for the weights of "
            f"{', '.join(others)}; load those by that name"
        )
    return quick, {}


# --- the model and its weights


def _create(model_name: str, spec: ModelSpec, *, quick: bool) -> Any:
    """Return open_clip's model with its weights; the caller's random state stays as it was."""
    try:
        with _quiet(), torch.random.fork_rng(devices=[]):
            return import_open_clip().create_model(
                spec.architecture,
                pretrained=str(spec.path or spec.tag),
                force_quick_gelu=quick,
                weights_only=True,
                pretrained_text=False,
            )
    except Exception as error:  # from torch's readers, the hub's client, the network or the disk
        raise InputError(f"{spec.path or model_name}: {_reason(error, spec)}") from error


def _reason(error: Exception, spec: ModelSpec) -> str:
    """Return in one line why weights could not be loaded."""
    text = " ".join(str(error).split())
    if "TorchScript" in text:
        return (
            "a TorchScript archive, which is not read; convert it once: python -c 'import open_clip, torch; "
            f'torch.save(open_clip.load_openai_model("{spec.path}", device="cpu", precision="fp32").state_dict(), '
            '"clip.pt")\''
        )
    if "state_dict" in text or isinstance(error, AssertionError):  # sizes of positional embeddings are asserted
        return f"does not fit {spec.architecture}: {text[:200]}"
    if spec.path is not None:
        return why_unreadable(error)
    return f"could not fetch its weights ({text[:200]}); connect to the network, or write {spec.architecture}:PATH"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Run open_clip without warnings and log lines."""
    log_level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(log_level)


# --- from open_clip's model to ours


def make_clip(
    *,
    name: str,
    model: Any,
    settings: Mapping[str, Any],
    tokenizer: Tokenizer | RowTokenizer,
    preprocess: Preprocess,
    device: str = "cpu",
) -> Clip:
    """Freeze a model of open_clip and describe it; its image tower's settings enter its digest."""
    model = model.float().eval().requires_grad_(False)
    visual, text = model.visual, getattr(model, "text", model)
    visual.output_tokens = text.output_tokens = False  # CoCa's towers return their tokens, too
    text_state = {key: value for key, value in model.state_dict().items() if not key.startswith("visual.")}
    activation = type(text.transformer.resblocks[0].mlp.gelu).__name__
    vision_facts = [json.dumps(settings["vision_cfg"], sort_keys=True), activation, preprocess]
    image_digest = digest_weights(vision_facts, visual.state_dict())
    text_facts = [image_digest, json.dumps(settings["text_cfg"], sort_keys=True), activation]
    return Clip(
        name=name,
        visual=visual.to(device),
        text=_text_tower(text, settings).to(device),
        tokenizer=tokenizer,
        logit_scale=model.logit_scale.exp().item(),
        preprocess=preprocess,
        embedding_scale=1.0,
        image_digest=image_digest,
        digest=digest_weights(text_facts, text_state),
    )


def _text_tower(text: Any, settings: Mapping[str, Any]) -> TextTower | PaddedTower:
    """Return CLIP's text tower in its fast form, any other as it is."""
    blocks = text.transformer.resblocks
    if not has_clips_text_tower(settings):
        return PaddedTower(
            module=_TextEncoder(text) if hasattr(text, "encode_text") else text,
            embedding=text.token_embedding,
            positions=text.context_length,
            feature_size=settings["embed_dim"],
            layers=len(blocks),
        )
    quick = type(blocks[0].mlp.gelu).__name__ == "QuickGELU"
    activation: Activation = "quick_gelu" if quick else "gelu"
    return TextTower.from_state(text.state_dict(), heads=blocks[0].attn.num_heads, activation=activation)


class _TextEncoder(nn.Module):
    """The text tower of a model of open_clip whose text tower is no module of its own."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        model.visual = None

    def forward(self, ids: Tensor) -> Tensor:
        features: Tensor = self.model.encode_text(ids)
        return features


def digest_weights(properties: Sequence[object], weights: Mapping[str, Tensor]) -> str:
    """Return a hash of weights and of other properties that determine what they compute."""
    with ThreadPoolExecutor() as threads:  # hashing releases the interpreter lock
        parts = list(threads.map(_digest_weight, sorted(weights.items())))
    return hashlib.sha256(repr([*properties, parts]).encode()).hexdigest()


def _digest_weight(named_weight: tuple[str, Tensor]) -> tuple[str, str, tuple[int, ...], str]:
    name, weight = named_weight
    content = weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return name, str(weight.dtype), tuple(weight.shape), hashlib.sha256(content).hexdigest()
