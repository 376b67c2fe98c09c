"""What a trial is: frozen values, checked where they are built, named by their content.

Lengths in embedding space (noise variances, start, learning rates of prompts) are written in the units of OpenAI's
ViT-B/16, where the released code's numbers live. A model with larger token embeddings declares an `embedding_scale`
(`Clip.embedding_scale`) by which standard deviations and learning rates are multiplied, variances by its square; x1 is
thus the released setting on every model. On the command line and in search spaces `x0.1` means a tenth of the default.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.specs import Precision

EMBEDDED_LIMIT = 200  # images of each embedded dataset unless asked otherwise: they are rendered without end

PROMPT_FILES = (".safetensors", ".pt", ".pth", ".bin")

Distance = Literal["squared_l2", "l2", "cosine"]
TermDistance = Literal["squared_l2", "l2", "cosine", "none"]  # none: the term is left out of the loss
Auto = Literal["auto", "on", "off"]


@functools.cache
def _type_hints(cls: Any) -> dict[str, Any]:
    """The types of a class's fields; resolving them takes longer than everything else that a config does."""
    return typing.get_type_hints(cls)


def _require(holds: bool, key: str, rule: str, value: object) -> None:
    if not holds:
        raise InputError(f"{key} must be {rule}, got {value!r}")


def _check_choices(config: Any, prefix: str) -> None:
    """Numbers are finite and literals are among their choices, for every field of a config."""
    kind: Any = type(config)
    hints = _type_hints(kind)
    for name in (f.name for f in dataclasses.fields(config)):
        value, hint = getattr(config, name), hints[name]
        key = f"{prefix}.{name}" if prefix else name
        if typing.get_origin(hint) is Literal and value not in typing.get_args(hint):
            raise InputError(f"{key}: {unknown('value', str(value), map(str, typing.get_args(hint)))}")
        if isinstance(value, float):
            _require(math.isfinite(value), key, "finite", value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FppConfig:
    """Flatness-aware prompt pretraining. Defaults are the released code's (preset `code`)."""

    gamma1: float = 1.0  # lambda = gamma1 + gamma2 / K
    gamma2: float = 15.0  # 15 in the released code, 0.15 in the paper's text
    lambda_shifts: float | None = 1.25  # fixed lambda on ImageNet's shifts (paper and code); none: the rule there too
    lambda_classes: Literal["dataset", "source"] = (
        "dataset"  # whose K when `class_source` is not the dataset's: unknown
    )
    start: Literal["random", "predefined"] = "random"
    start_std: float = 0.141421
    context_var: float = 0.005  # noise on the context positions; the released std 0.0707105, squared
    class_var: float = 0.02  # noise on all other positions; the released std 0.141421, squared
    noise_positions: Literal["all", "name"] = "all"  # all: SOS, name, full stop and EOT alike; name: the name only
    noise_shared: bool = True  # one draw for all classes, or one for each
    draws: int = 4
    detach: Literal["noisy", "clean", "none"] = "noisy"  # the branch of the flatness term that gets no gradient
    align_distance: TermDistance = "squared_l2"
    flat_distance: TermDistance = "cosine"
    steps: int = 1000
    lr: float = 1e-2
    final_lr: float = 1e-4  # end of the cosine
    weight_decay: float = 0.01
    class_source: Literal["dataset", "imagenet", "gaussian"] = "dataset"

    def __post_init__(self) -> None:
        _check_choices(self, "fpp")
        for name in ("start_std", "context_var", "class_var", "lr", "final_lr", "weight_decay"):
            _require(getattr(self, name) >= 0, f"fpp.{name}", ">= 0", getattr(self, name))
        _require(self.draws >= 1, "fpp.draws", ">= 1", self.draws)
        _require(self.steps >= 0, "fpp.steps", ">= 0", self.steps)
        both_off = self.align_distance == "none" == self.flat_distance
        _require(not both_off, "fpp.align_distance or fpp.flat_distance", "a distance (both terms are off)", "none")

    def flatness_weight(self, classes: int) -> float:
        """lambda for K classes.

        >>> FppConfig().flatness_weight(10)
        2.5
        """
        return self.gamma1 + self.gamma2 / classes

    def scaled(self, unit: float) -> FppConfig:
        """The same settings in the lengths of a model whose embeddings are `unit` times ViT-B/16's.

        Weight decay shrinks a prompt by lr * weight_decay a step, which stays.
        """
        return dataclasses.replace(
            self,
            start_std=self.start_std * unit,
            context_var=self.context_var * unit**2,
            class_var=self.class_var * unit**2,
            lr=self.lr * unit,
            final_lr=self.final_lr * unit,
            weight_decay=self.weight_decay / unit,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptConfig:
    """One sample's test-time adaptation (TPT family)."""

    steps: int = 1
    lr: float = 5e-3
    weight_decay: float = 0.01
    view_fraction: float = 0.1  # share of the views kept: the int(0.1 * 64) = 6 most confident
    penalty_weight: float | None = (
        None  # weight of the method's regulariser; none: the paper's for the method and dataset
    )
    optimizer: Literal["adamw", "sgd"] = "adamw"  # sgd: the plain gradient step that FPP's paper analyses, with lr 1
    # of the methods with a sharpness-aware step; what no source says is as in SAM and ASAM themselves
    sam_rho: float = 0.05  # length of the step to the worst point
    asam_rho: float = 0.5  # the same, each coordinate measured by its own size
    # of those, and of the methods of two steps: select views again at the point of the second gradient;
    # auto: where the first step sees no views
    reselect: Auto = "auto"
    keep_optimizer: bool = True  # the second of two steps goes on with the optimizer state of the first
    # of DynaPrompt
    slots: int = 12
    slot_rule: Literal["released", "corrected", "described"] = "released"  # how prompts are selected; docs/methods.md
    order: Literal["fair", "file", "shuffled"] = "fair"  # of the stream

    def __post_init__(self) -> None:
        _check_choices(self, "adapt")
        _require(self.sam_rho > 0, "adapt.sam_rho", "> 0", self.sam_rho)
        _require(self.asam_rho > 0, "adapt.asam_rho", "> 0", self.asam_rho)
        _require(self.slots >= 1, "adapt.slots", ">= 1", self.slots)
        _require(self.steps >= 0, "adapt.steps", ">= 0", self.steps)
        _require(self.lr >= 0, "adapt.lr", ">= 0", self.lr)
        _require(self.weight_decay >= 0, "adapt.weight_decay", ">= 0", self.weight_decay)
        _require(0 < self.view_fraction <= 1, "adapt.view_fraction", "in (0, 1]", self.view_fraction)

    def scaled(self, unit: float) -> AdaptConfig:
        """The same settings in the lengths of a model whose embeddings are `unit` times ViT-B/16's."""
        return dataclasses.replace(
            self, lr=self.lr * unit, weight_decay=self.weight_decay / unit, sam_rho=self.sam_rho * unit
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewConfig:
    """The augmented views of a test image; view 0 is the plain centre crop."""

    count: int = 64
    min_area: float = 0.08  # of the random crops, torchvision's default
    max_area: float = 1.0
    augmix: Auto = "auto"  # auto: as the dataset's published protocol has it
    flip: Auto = "auto"  # auto: on unless the dataset says that a mirror image is another class

    def __post_init__(self) -> None:
        _check_choices(self, "views")
        _require(self.count >= 1, "views.count", ">= 1", self.count)
        _require(0 < self.min_area <= self.max_area, "views.min_area", "in (0, views.max_area]", self.min_area)
        _require(self.max_area <= 1, "views.max_area", "<= 1", self.max_area)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureConfig:
    """How sharp the loss is at an adapted prompt: what the paper leaves open."""

    rho: float = 0.05  # length of the step up the gradient
    norm: Literal["global", "token"] = "global"  # one step of that length, or one for each context token
    views: Literal["start", "adapted"] = "start"  # selected at the initial prompt, or again at the adapted one

    def __post_init__(self) -> None:
        _check_choices(self, "measure")
        _require(self.rho > 0, "measure.rho", "> 0", self.rho)

    def scaled(self, unit: float) -> MeasureConfig:
        """The same settings in the lengths of a model whose embeddings are `unit` times ViT-B/16's."""
        return dataclasses.replace(self, rho=self.rho * unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialConfig:
    """Everything that decides a trial's numbers apart from the model, the data and the seed."""

    method: str = catalogue.DEFAULT
    prompt: str = "fpp"  # where adaptation starts: `fpp`, some words, or a prompt file
    anchor_prompt: str = "a photo of a"  # the predefined prompt that FPP stays aligned with: words or a prompt file
    # a MaPLe checkpoint's prompts of deeper layers, frozen: none, those of the text, or those of text and image
    deep_prompts: Literal["none", "text", "both"] = "none"
    # of matrices, in every stage; fp16: half precision by autocast, as the released code runs on a GPU
    precision: Precision = "float32"
    fpp: FppConfig = field(default_factory=FppConfig)
    adapt: AdaptConfig = field(default_factory=AdaptConfig)
    views: ViewConfig = field(default_factory=ViewConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)

    def __post_init__(self) -> None:
        _check_choices(self, "")

    @property
    def source(self) -> str:
        """The words or the file that adaptation, or FPP before it, starts from."""
        return self.anchor_prompt if self.prompt == "fpp" else self.prompt

    def flat(self) -> dict[str, Any]:
        """Dotted keys and plain values.

        >>> TrialConfig().flat()["fpp.gamma2"]
        15.0
        """
        return dict(zip(setting_types(), attrgetter(*setting_types())(self), strict=True))

    def replace(self, values: Mapping[str, Any]) -> TrialConfig:
        """A copy with dotted keys set; values may be text, as on a command line.

        >>> TrialConfig().replace({"fpp.gamma2": "0.15", "fpp.class_var": "x0.5"}).fpp.class_var
        0.01
        """
        changes: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            section, _, name = key.rpartition(".")
            changes.setdefault(section, {})[name] = convert(key, value)
        top = changes.pop("", {})
        for section, fields in changes.items():
            top[section] = dataclasses.replace(getattr(self, section), **fields)
        return dataclasses.replace(self, **top)


def is_file_name(prompt: str) -> bool:
    """Whether a prompt given as text names a file rather than being the words themselves.

    >>> is_file_name("a photo of a"), is_file_name("a black/white photo of a"), is_file_name("coop/model.pth.tar-50")
    (False, False, True)
    """
    return ("/" in prompt and " " not in prompt) or ".pth.tar" in prompt or prompt.endswith(PROMPT_FILES)


def require_prompt(prompt: str) -> None:
    """A prompt's file must be there; what is in it is seen when a model is."""
    if is_file_name(prompt) and not Path(prompt).is_file():
        raise InputError(f"prompt file {prompt} does not exist")


_SECTIONS = (FppConfig, AdaptConfig, ViewConfig, MeasureConfig)
PRESETS: dict[str, dict[str, Any]] = {
    # the released code, which the defaults are
    "code": {},
    # the paper's text where it differs from the code; what the text leaves open stays as in the code
    "paper": {
        "fpp.gamma2": 0.15,
        "fpp.start": "predefined",
        "fpp.detach": "none",
        "fpp.align_distance": "l2",
        "fpp.noise_positions": "name",
        "fpp.final_lr": 0.0,
    },
    # the embedded model: sizes that suit two CPU cores, and noise that its larger token embeddings bear
    "tiny": {
        "fpp.gamma2": 0.15,
        "fpp.context_var": "x0.01",
        "fpp.class_var": "x0.01",
        "fpp.steps": 60,
        "adapt.lr": 1e-2,
        "views.count": 32,
        "views.min_area": 0.5,
    },
}


def preset(name: str) -> TrialConfig:
    """A named starting point for a trial.

    >>> preset("paper").fpp.gamma2
    0.15
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return TrialConfig().replace(PRESETS[name])


@functools.cache
def setting_types() -> Mapping[str, Any]:
    """The type of every dotted key."""
    nested = {**_type_hints(TrialConfig)}
    nested |= {name: _type_hints(hint) for name, hint in nested.items() if hint in _SECTIONS}
    return dict(dotted(nested))


@functools.cache
def _defaults() -> Mapping[str, Any]:
    return TrialConfig().flat()


def convert(key: str, value: Any) -> Any:
    """A setting's value, often text, as the type of its key; whether it is a possible one, a config says.

    >>> convert("fpp.class_var", "x0.5"), convert("fpp.noise_shared", "off"), convert("adapt.penalty_weight", "none")
    (0.01, False, None)
    """
    if key not in setting_types():
        raise unknown("config key", key, setting_types())
    hint, default = setting_types()[key], _defaults()[key]
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(None) in kinds and (value is None or value == "none"):
        return None
    kind = kinds[0]
    if typing.get_origin(kind) is Literal or kind is str:
        _require(isinstance(value, str), key, "text", value)
        return value
    if kind is bool:
        words = {"true": True, "on": True, "false": False, "off": False}
        known = isinstance(value, bool) or (isinstance(value, str) and value.lower() in words)
        _require(known, key, "true or false", value)
        return value if isinstance(value, bool) else words[value.lower()]
    if isinstance(value, str) and value.startswith("x") and kind is float and isinstance(default, float):
        return default * _number(key, value[1:], float)
    return _number(key, value, kind)


def parse_settings(settings: Iterable[str]) -> dict[str, str]:
    """`key=value` words of a command line.

    >>> parse_settings(["fpp.gamma2=0.15"])
    {'fpp.gamma2': '0.15'}
    """
    values = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise InputError(f"--set {setting!r}: expected key=value, such as fpp.gamma2=0.15")
        values[key.strip()] = value.strip()
    return values


def relevant(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A config's settings without those that nothing reads.

    >>> "fpp.gamma2" in relevant(TrialConfig(prompt="a photo of a").flat())
    False
    """
    read = ("method", "prompt", "deep_prompts", "precision", *catalogue.method(flat["method"]).reads)
    read += ("fpp.", "anchor_prompt") if flat["prompt"] == "fpp" else ()
    return {key: value for key, value in flat.items() if key.startswith(read)}


def dotted(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """
    >>> dict(dotted({"method": "tpt", "fpp": {"draws": 4}}))
    {'method': 'tpt', 'fpp.draws': 4}
    """
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _number(key: str, value: Any, kind: type[int] | type[float]) -> int | float:
    rounded = kind is int and isinstance(value, float) and not value.is_integer()
    with suppress(TypeError, ValueError, OverflowError):
        if not (rounded or isinstance(value, bool)):
            return kind(value)
    raise InputError(f"{key} must be {'a whole number' if kind is int else 'a number'}, got {value!r}")
