"""A trial's settings: frozen values, checked when they are built.

The four sections (`FppConfig`, `AdaptConfig`, `ViewConfig`, `MeasureConfig`) make up a `TrialConfig`. Everywhere else a
setting is known by its dotted key, such as `fpp.gamma2`: on the command line, in search spaces and in records.

Lengths in embedding space (noise variances, start, learning rates of prompts) are written in the units of OpenAI's
ViT-B/16, for which the released code gives its numbers. A model with larger token embeddings declares an
`embedding_scale` (`Clip.embedding_scale`). Standard deviations and learning rates are multiplied by the scale, and
variances by its square; x1 is thus the released setting on every model. On the command line and in search spaces `x0.1`
means a tenth of the default.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.files import user_path
from fpp_sweep.spec.specs import Precision
from fpp_sweep.spec.validation import at_key, check_value, checked, require

EMBEDDED_LIMIT = 200  # images of each embedded dataset by default: its images are drawn by a program, without end

PROMPT_FILES = (".safetensors", ".pt", ".pth", ".bin")
TEMPLATES = ("released", "simple", "openai")  # each dataset's own list as released, and two lists of open_clip
TEMPLATE_FILE = ".json"

Distance = Literal["squared_l2", "l2", "cosine"]
TermDistance = Literal["squared_l2", "l2", "cosine", "none"]  # none: the term is left out of the loss
Auto = Literal["auto", "on", "off"]
METHOD_AND_START = ("method", "prompt", "adapt.templates")  # they decide which other settings a trial reads: `relevant`


def draws_order(method: object, order: object) -> bool:
    """Return True if the seed draws the order of the images that a method adapts to.

    >>> draws_order("tda", "shuffled"), draws_order("tda", "fair"), draws_order("tpt", "shuffled")
    (True, False, False)
    """
    row = catalogue.METHODS.get(str(method))  # a plugin's method may not be loaded
    return row is not None and row.ordered and order == "shuffled"


# ------------------------------------------------------------ types of values


def _check_templates(templates: str) -> str:
    if not is_template_file(templates) and templates not in TEMPLATES:
        problem = unknown("templates", templates, TEMPLATES).problem
        raise InputError(f"{problem}; a file needs a name that ends with {TEMPLATE_FILE}")
    return templates


NotNegative = Annotated[float, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0)]
AtLeast1 = Annotated[int, Field(ge=1)]
Templates = Annotated[str, AfterValidator(_check_templates)]

# ------------------------------------------------------------ the sections


@checked
class FppConfig:
    """Flatness-aware prompt pretraining. Defaults are the released code's (preset `code`)."""

    gamma1: float = 1.0  # lambda = gamma1 + gamma2 / K
    gamma2: float = 15.0  # 15 in the released code, 0.15 in the paper's text
    lambda_shifts: float | None = 1.25  # fixed lambda on ImageNet's shifts (paper and code); none: the rule there too
    # the classes that K counts, if class_source is not the dataset; which of the two is right is unknown
    lambda_classes: Literal["dataset", "source"] = "dataset"
    start: Literal["random", "predefined"] = "random"  # predefined: start from the anchor prompt
    start_std: NotNegative = 0.141421
    context_var: NotNegative = 0.005  # noise on the context positions; the released std 0.0707105, squared
    class_var: NotNegative = 0.02  # noise on all other positions; the released std 0.141421, squared
    noise_positions: Literal["all", "name"] = "all"  # all: SOS, full stop and EOT too; name: context and name only
    noise_shared: bool = True  # one draw for all classes, or one for each
    draws: AtLeast1 = 4
    detach: Literal["noisy", "clean", "none"] = "noisy"  # the branch of the flatness term that gets no gradient
    align_distance: TermDistance = "squared_l2"
    flat_distance: TermDistance = "cosine"
    steps: Count = 1000
    lr: NotNegative = 1e-2
    final_lr: NotNegative = 1e-4  # end of the cosine schedule
    weight_decay: NotNegative = 0.01
    class_source: Literal["dataset", "imagenet", "gaussian"] = "dataset"

    def __post_init__(self) -> None:
        if self.align_distance == "none" and self.flat_distance == "none":
            raise InputError("the loss has no term (fpp.align_distance and fpp.flat_distance are none); keep one")

    def flatness_weight(self, classes: int) -> float:
        """Return lambda for K classes.

        >>> FppConfig().flatness_weight(10)
        2.5
        """
        return self.gamma1 + self.gamma2 / classes

    def scaled(self, unit: float) -> FppConfig:
        """Return the same settings in the lengths of a model whose embeddings are `unit` times ViT-B/16's.

        A step shrinks a prompt by lr * weight_decay, which stays.
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


@checked
class AdaptConfig:
    """Test-time adaptation to one sample (TPT and its relatives)."""

    steps: Count = 1
    lr: NotNegative = 5e-3
    weight_decay: NotNegative = 0.01
    view_fraction: Fraction = 0.1  # share of the views that are kept: the int(0.1 * 64) = 6 most confident
    penalty_weight: float | None = None  # none: the published weight for the method and the kind of dataset
    optimizer: Literal["adamw", "sgd"] = "adamw"  # sgd: the plain gradient step that FPP's paper analyses, with lr 1
    # methods with a sharpness-aware step; what no source says is as in SAM and ASAM themselves
    sam_rho: Above0 = 0.05  # length of the step to the worst point
    asam_rho: Above0 = 0.5  # the same, with each coordinate measured by its own size
    # methods with a sharpness-aware step or two steps: select views again at the point of the second gradient;
    # auto: if the first step sees no views
    reselect: Auto = "auto"
    # methods with two steps
    keep_optimizer: bool = True  # the second step continues with the optimizer state of the first
    # DynaPrompt
    slots: AtLeast1 = 12  # prompts in the buffer
    slot_rule: Literal["released", "corrected", "described"] = "released"  # selects prompts: see docs/methods.md
    order: Literal["fair", "shuffled"] = "fair"  # order of the stream; shuffled: by the seed
    # ZERO
    vote_form: Literal["described", "released"] = "described"  # hard votes, or shares at scale 1024: docs/methods.md
    vote_fraction: Fraction = 0.3  # share of the views that vote: the int(0.3 * 64) = 19 most confident
    # TDA and BoostAdapter; none and auto: the released value for the dataset (catalogue.toml)
    cache_alpha: NotNegative | None = None  # factor of what the positive cache adds
    cache_beta: NotNegative | None = None  # sharpness of its kernel
    boost_delta: Count | None = None  # items of a class that the boosted cache holds beyond three
    boost_query: Literal["auto", "plain", "views"] = "auto"  # BoostAdapter files the plain view or the mean view
    # TPS
    shift_lr: NotNegative = 5e-3  # step of the shift; unit features have the same length on every model
    shift_form: Literal["class", "shared"] = "class"  # one shift for each class, or one for all
    # SoC
    huber_delta: Above0 = 0.5  # cosine above which the penalty is linear; not printed in the paper, the value is ours
    # methods that need image features alone: an ensemble of templates instead of the prompt: released, simple, openai
    # or a JSON file (docs/methods.md); none: the prompt, in zero_shot_ensemble openai
    templates: Templates | None = None

    def with_defaults_except(self, reads: tuple[str, ...]) -> AdaptConfig:
        """Return the settings that a method reads (`MethodRow.reads`); all others have their defaults."""
        values = {}
        for setting_field in dataclasses.fields(self):
            if f"adapt.{setting_field.name}".startswith(reads):
                values[setting_field.name] = getattr(self, setting_field.name)
        return AdaptConfig(**values)

    def scaled(self, unit: float) -> AdaptConfig:
        """Return the same settings in the lengths of a model whose embeddings are `unit` times ViT-B/16's."""
        return dataclasses.replace(
            self, lr=self.lr * unit, weight_decay=self.weight_decay / unit, sam_rho=self.sam_rho * unit
        )


@checked
class ViewConfig:
    """The augmented views of a test image; view 0 is the plain centre crop."""

    count: AtLeast1 = 64
    min_area: Fraction = 0.08  # smallest area of a random crop; torchvision's default
    max_area: Fraction = 1.0
    augmix: Auto = "auto"  # auto: as the dataset's published protocol has it
    flip: Auto = "auto"  # auto: on unless the dataset says that a mirror image is another class

    def __post_init__(self) -> None:
        problem = f"views.min_area must be <= views.max_area ({self.min_area:g} and {self.max_area:g})"
        require(self.min_area <= self.max_area, problem)


@checked
class MeasureConfig:
    """The measurement of sharpness at an adapted prompt: what the paper leaves open."""

    rho: Above0 = 0.05  # length of the step up the gradient
    norm: Literal["global", "token"] = "global"  # one step of that length, or one for each context token
    views: Literal["start", "adapted"] = "start"  # selected at the initial prompt, or again at the adapted one

    def scaled(self, unit: float) -> MeasureConfig:
        """Return the same settings in the lengths of a model whose embeddings are `unit` times ViT-B/16's."""
        return dataclasses.replace(self, rho=self.rho * unit)


@checked
class TrialConfig:
    """Everything that decides a trial's numbers apart from the model, the data and the seed.

    >>> config = TrialConfig(method="otpt", prompt="a photo of a")
    >>> config.replace({"adapt.penalty_weight": 9, "adapt.lr": "x2"}).adapt.lr
    0.01
    >>> config.replace({"adapt.lr": -1})
    Traceback (most recent call last):
    fpp_sweep.spec.errors.InputError: adapt.lr: must be >= 0 (-1)
    """

    method: str = catalogue.TPT
    prompt: str = "fpp"  # where adaptation starts: `fpp`, some words, or a prompt file
    anchor_prompt: str = "a photo of a"  # the prompt that FPP stays aligned with: words or a prompt file
    # matrix products in every stage; fp16: half precision by autocast; released: fp16, but pretraining in float32
    precision: Precision = "float32"
    fpp: FppConfig = field(default_factory=FppConfig)
    adapt: AdaptConfig = field(default_factory=AdaptConfig)
    views: ViewConfig = field(default_factory=ViewConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)

    @property
    def templates(self) -> str:
        """The templates whose ensemble replaces the prompt; empty: the prompt is used."""
        if self.method not in catalogue.METHODS:
            return ""
        return catalogue.method(self.method).templates_of(self.adapt.templates)

    @property
    def pretrains(self) -> bool:
        """True if FPP learns the prompt."""
        return self.prompt == "fpp" and not self.templates

    @property
    def draws_order(self) -> bool:
        """True if the seed draws the order of the images."""
        return draws_order(self.method, self.adapt.order)

    @property
    def source(self) -> str:
        """The words or the file that adaptation, or FPP before it, starts from."""
        if self.prompt == "fpp":
            return self.anchor_prompt
        return self.prompt

    def flat(self) -> dict[str, Any]:
        """Return plain values by dotted key.

        >>> TrialConfig().flat()["fpp.gamma2"]
        15.0
        """
        keys = list(settings())
        return dict(zip(keys, attrgetter(*keys)(self), strict=True))

    def replace(self, values: Mapping[str, Any]) -> TrialConfig:
        """Return a copy with some settings changed, by dotted key; values may be text, as on a command line.

        >>> TrialConfig().replace({"fpp.gamma2": "0.15", "fpp.class_var": "x0.5"}).fpp.class_var
        0.01
        """
        top: dict[str, Any] = {}
        sections: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            parsed_setting = setting(key)
            with at_key(key):
                parsed = parsed_setting.parse(value)
            section, dot, name = key.rpartition(".")
            if dot:
                sections.setdefault(section, {})[name] = parsed
            else:
                top[key] = parsed
        for section, fields in sections.items():
            top[section] = dataclasses.replace(getattr(self, section), **fields)
        return dataclasses.replace(self, **top)


def is_file_name(prompt: str) -> bool:
    """Return whether a prompt given as text names a file rather than being the words themselves.

    >>> is_file_name("a photo of a"), is_file_name("a black/white photo of a"), is_file_name("coop/model.pth.tar-50")
    (False, False, True)
    """
    return ("/" in prompt and " " not in prompt) or ".pth.tar" in prompt or prompt.endswith(PROMPT_FILES)


def is_template_file(templates: str) -> bool:
    """Return whether templates are in a file rather than one of the lists that come with the package."""
    return templates.endswith(TEMPLATE_FILE)


def require_prompt(prompt: str) -> None:
    """Raise InputError if a prompt's file is missing; its content is checked when a model is loaded."""
    if not is_file_name(prompt):
        return
    path = user_path(prompt)
    if path.is_dir():  # a trial has a file for each dataset and seed
        raise InputError(f"prompt file {prompt} is a folder; give one of its files")
    if not path.is_file():
        raise InputError(f"prompt file {prompt} does not exist")


def require_templates(templates: str) -> None:
    """Raise InputError if a file of templates is missing; its content is checked when datasets are opened."""
    if is_template_file(templates) and not user_path(templates).is_file():
        raise InputError(f"template file {templates} does not exist", "adapt.templates")


# ------------------------------------------------------------ presets

PRESETS: dict[str, dict[str, Any]] = {
    # the released code, which the defaults are
    "code": {},
    # the paper's text where it differs from the code; what the text leaves open stays as in the code, except for the
    # start, which the text suggests to be the anchor prompt, and the end of the cosine, which is 0
    "paper": {
        "fpp.gamma2": 0.15,
        "fpp.start": "predefined",
        "fpp.detach": "none",
        "fpp.align_distance": "l2",
        "fpp.noise_positions": "name",
        "fpp.final_lr": 0.0,
    },
    # the embedded model: sizes that suit two CPU cores, and noise that suits its larger token embeddings
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
    """Return a named starting point for a trial.

    >>> preset("paper").fpp.gamma2
    0.15
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return TrialConfig().replace(PRESETS[name])


# ------------------------------------------------------------ settings by key

Kind = Literal["number", "integer", "switch", "choice", "text"]
_SECTIONS: Mapping[str, Any] = {"fpp": FppConfig, "adapt": AdaptConfig, "views": ViewConfig, "measure": MeasureConfig}
_KINDS: Mapping[Any, Kind] = {float: "number", int: "integer", bool: "switch", str: "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a trial: its key, what its values are, and its default."""

    key: str
    kind: Kind
    choices: tuple[str, ...]  # values of a choice; else empty
    optional: bool  # True if `none` is a value
    section: Any  # the class that has it as a field
    default: Any

    @classmethod
    def of(cls, key: str, section: Any, field: dataclasses.Field[Any]) -> Setting:
        """Describe a setting by its field."""
        hint = typing.get_type_hints(section)[field.name]
        optional = type(None) in typing.get_args(hint)
        if optional:
            hint, _ = typing.get_args(hint)  # float | None
        choices = ()
        kind: Kind = "choice"
        if typing.get_origin(hint) is Literal:
            choices = typing.get_args(hint)
        else:
            kind = _KINDS[hint]
        return cls(key=key, kind=kind, choices=choices, optional=optional, section=section, default=field.default)

    def parse(self, value: Any) -> Any:
        """Return a value, often text, as the setting's type, within its bounds.

        >>> setting("fpp.class_var").parse("x0.5"), setting("fpp.noise_shared").parse("off")
        (0.01, False)
        """
        if self.optional and value == "none":
            return None
        if self.kind == "number" and isinstance(value, str) and value.startswith("x"):
            with suppress(ValueError, TypeError):  # relative to the default, if there is one
                value = self.default * float(value[1:])
        if isinstance(value, bool) and self.kind in ("number", "integer"):
            value = repr(value)  # Python takes it for a number
        return check_value(self.section, self.key.rpartition(".")[2], value)


def setting(key: str) -> Setting:
    """Return the setting with a dotted key."""
    if key not in settings():
        raise unknown("setting", key, settings())
    return settings()[key]


@functools.cache
def settings() -> Mapping[str, Setting]:
    """Return every setting by its dotted key, in the order of the config's fields."""
    by_key: dict[str, Setting] = {}
    for top in dataclasses.fields(TrialConfig):
        if top.name not in _SECTIONS:
            by_key[top.name] = Setting.of(top.name, TrialConfig, top)
            continue
        section = _SECTIONS[top.name]
        for inner in dataclasses.fields(section):
            key = f"{top.name}.{inner.name}"
            by_key[key] = Setting.of(key, section, inner)
    return by_key


def relevant(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's settings without those that its method and prompt do not read.

    Without a method that is known, as in a plugin that is not loaded or an import, return all of them.

    >>> "fpp.gamma2" in relevant(TrialConfig(prompt="a photo of a").flat())
    False
    """
    if flat.get("method") not in catalogue.METHODS or "prompt" not in flat:
        return dict(flat)
    row = catalogue.method(flat["method"])
    read = ["method", "precision", *row.reads]
    if not row.templates_of(flat.get("adapt.templates")):
        read += ["prompt"]
        if flat["prompt"] == "fpp":
            read += ["fpp.", "anchor_prompt"]
    return {key: value for key, value in flat.items() if key.startswith(tuple(read))}


def dotted(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings by dotted key.

    >>> dict(dotted({"method": "tpt", "fpp": {"draws": 4}}))
    {'method': 'tpt', 'fpp.draws': 4}
    """
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
