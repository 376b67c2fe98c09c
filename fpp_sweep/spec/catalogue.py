"""The tables of all methods, metrics and samplers of plugins: all that a sweep must know of them, without torch.

Checks, search spaces, the JSON schema, result tables and the contract tests are made from these rows, so a row is all
that a new method or metric needs. A row names the code that computes it as `module:attribute`, which is imported at its
first use. A plugin (docs/plugins.md) adds rows whose code is the function itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, Literal, NamedTuple

from fpp_sweep.spec.errors import InputError, unknown

Goal = Literal["max", "min"]
ConformalForm = Literal["lac", "aps"]
ViewKind = Literal["augmix", "crops", "plain"]  # random crops with AugMix, random crops alone, the plain view alone
Code = str | Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewProtocol:
    """The views that a method's released program draws, by group of datasets."""

    fine_grained: ViewKind
    imagenet: ViewKind
    shifts: ViewKind

    def kind(self, group: str) -> ViewKind | None:
        """Return the kind of views in a group; other groups are as `fine_grained`, but for AugMix.

        None stands for AugMix as the dataset has it.
        """
        if group in ("fine_grained", "imagenet", "shifts"):
            kind: ViewKind = getattr(self, group)
            return kind
        if self.fine_grained == "augmix":
            return None
        return self.fine_grained


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """A method; `build(adapt=AdaptConfig, penalty=function or None, weight=float)` gives a core.methods.base.Method."""

    name: str
    title: str
    build: Code
    penalty: Code | None = None  # function of the text features, added to the loss
    weight: float = 0.0  # the penalty's weight, as published
    weight_on_shifts: float = 0.0  # the same on ImageNet's shifts
    views: int | None = None  # number of a sample's views that it uses, the plain one first; none: all of views.count
    learns: bool = True  # True if it changes the prompt
    stateful: bool = False  # True if a sample's result depends on the samples before it
    reads: tuple[str, ...] = ()  # the settings that its results depend on; `views.` stands for all that begin so
    baseline: bool = False  # True if a sweep compares its trials with it by default
    protocol: ViewProtocol | None = None  # the released views; none: those of the dataset
    templates: str = ""  # the templates that it uses unless `adapt.templates` says otherwise; empty: the prompt
    listed: bool = True  # False keeps it out of help texts and lists; it is reachable by its name
    digest: str = ""  # digest of the plugin that defines the row; empty: built in

    @property
    def ordered(self) -> bool:
        """True if the stream may come in any order of `adapt.order`; other streams come in the dataset's order."""
        return self.stateful and "adapt.order".startswith(self.reads)

    def templates_of(self, setting: str | None) -> str:
        """Return the templates that a value of `adapt.templates` stands for; empty if the method uses the prompt."""
        if "adapt.templates" not in self.reads:
            return ""
        return setting or self.templates


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """A metric: `compute(Predictions) -> float` for one dataset, or a cost of a whole trial, which has no `compute`."""

    name: str
    title: str
    goal: Goal
    heading: str
    decimals: int  # as the papers print it
    compute: Code | None = None
    merges: Literal["mean", "sum"] = "mean"  # over datasets and seeds
    columns: tuple[str, ...] = ()  # optional columns of the predictions that it needs
    shown: bool = False  # in tables of a trial by default; the others on request
    on_request: bool = False  # computed only if its columns are requested, because they cost much
    digest: str = ""  # digest of the plugin that defines the row; empty: built in

    @property
    def of_dataset(self) -> bool:
        return self.compute is not None


class MetricParts(NamedTuple):
    """The parts of a metric's name: `ece@temperature_val/dtd` is the ECE of dtd after the map `temperature_val`."""

    stem: str
    posthoc: str = ""  # the post-hoc map; empty: the method's own probabilities
    dataset: str = ""  # empty: the average

    @property
    def of_average(self) -> str:
        """The name without the dataset."""
        if self.posthoc:
            return f"{self.stem}@{self.posthoc}"
        return self.stem


@dataclass(frozen=True, slots=True, kw_only=True)
class PosthocRow:
    """A map of calibration after the fact, `work.posthoc`; statistics/posthoc_maps.py computes it."""

    name: str
    title: str
    fitted_on: Literal["val", "val of other datasets", "the measured labels"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformalRow:
    """Conformal sets, made of all probabilities of a trial's predictions; statistics/conformal.py computes them."""

    form: ConformalForm  # the score of a class
    percent: int  # share of images whose label is meant to be in the set


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRow:
    """A sampler of a plugin; `build(seed)` gives an optuna.samplers.BaseSampler."""

    name: str
    title: str
    build: Callable[[int], Any]
    digest: str  # digest of the plugin that defines the row


Row = MethodRow | MetricRow | SamplerRow


# ------------------------------------------------------------ methods

_TPT = "fpp_sweep.core.methods.tpt:Tpt"
_SAM = "fpp_sweep.core.methods.steps:Sam"
_ASAM = "fpp_sweep.core.methods.steps:Asam"
_ENT_ENT = "fpp_sweep.core.methods.steps:EntEnt"
_ENT_REG = "fpp_sweep.core.methods.steps:EntReg"
_REG_ENT = "fpp_sweep.core.methods.steps:RegEnt"
_DYNAPROMPT = "fpp_sweep.core.methods.dynaprompt:DynaPrompt"
_RTPT = "fpp_sweep.core.methods.rtpt:RTpt"
_SOC = "fpp_sweep.core.methods.tpt:Soc"

# the settings that methods read, apart from the weight of a penalty
_STEP_READS = ("adapt.lr", "adapt.weight_decay", "adapt.optimizer", "adapt.view_fraction", "views.")
_TPT_READS = ("adapt.steps", *_STEP_READS)
_SAM_READS = (*_TPT_READS, "adapt.sam_rho", "adapt.reselect")
_ASAM_READS = (*_TPT_READS, "adapt.asam_rho", "adapt.reselect")
_TWO_STEP_READS = (*_STEP_READS, "adapt.keep_optimizer")
_RESELECTING_READS = (*_TWO_STEP_READS, "adapt.reselect")
_STREAM_READS = (
    "adapt.lr",
    "adapt.weight_decay",
    "adapt.view_fraction",
    "adapt.slots",
    "adapt.slot_rule",
    "adapt.order",
    "views.",
)
_VOTE_READS = ("adapt.vote_form", "adapt.vote_fraction")
_CACHE_READS = ("adapt.cache_alpha", "adapt.cache_beta", "adapt.view_fraction", "adapt.order")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Penalty:
    """A penalty and its published weights."""

    code: str
    weight: float
    weight_on_shifts: float


_CTPT = _Penalty(code="fpp_sweep.core.methods.penalties:dispersion", weight=50.0, weight_on_shifts=20.0)
_OTPT = _Penalty(code="fpp_sweep.core.methods.penalties:orthogonality", weight=18.0, weight_on_shifts=2.0)
_OTPT_SQUARED = _Penalty(
    code="fpp_sweep.core.methods.penalties:squared_orthogonality", weight=18.0, weight_on_shifts=2.0
)
_ATPT = _Penalty(
    code="fpp_sweep.core.methods.penalties:negative_mean_nearest_angle", weight=10.0, weight_on_shifts=10.0
)
# the script of the fine-grained datasets adds the angle; that of the shifts subtracts it, as the paper does
_ATPT_RELEASED = _Penalty(
    code="fpp_sweep.core.methods.penalties:mean_nearest_angle", weight=80.0, weight_on_shifts=-10.0
)
_SOC_PENALTY = _Penalty(  # ours: the authors' README has 30 on ViT-L/14, in a scale that has not been read
    code="fpp_sweep.core.methods.penalties:pairwise_huber", weight=10.0, weight_on_shifts=10.0
)

_CROPS = ViewProtocol(fine_grained="crops", imagenet="crops", shifts="crops")
_AUGMIX_AND_CROPS = ViewProtocol(fine_grained="augmix", imagenet="crops", shifts="crops")
_TDA_VIEWS = ViewProtocol(fine_grained="plain", imagenet="plain", shifts="augmix")
_BOOST_VIEWS = ViewProtocol(fine_grained="crops", imagenet="plain", shifts="crops")


def _method(
    name: str,
    title: str,
    build: str,
    reads: tuple[str, ...],
    penalty: _Penalty | None = None,
    *,
    baseline: bool = False,
    stateful: bool = False,
    protocol: ViewProtocol | None = None,
    listed: bool = True,
) -> MethodRow:
    """Return the row of a method that tunes the prompt; with a penalty, it reads the penalty's weight, too."""
    row = MethodRow(
        name=name,
        title=title,
        build=build,
        reads=reads,
        baseline=baseline,
        stateful=stateful,
        protocol=protocol,
        listed=listed,
    )
    if penalty is None:
        return row
    return replace(
        row,
        penalty=penalty.code,
        weight=penalty.weight,
        weight_on_shifts=penalty.weight_on_shifts,
        reads=(*reads, "adapt.penalty_weight"),
    )


def _of_features(
    name: str, title: str, build: str, reads: tuple[str, ...] = (), *, protocol: ViewProtocol, stateful: bool = False
) -> MethodRow:
    """Return the row of a method that needs image features and text features, and leaves the prompt as it is."""
    return MethodRow(
        name=name,
        title=title,
        build=f"fpp_sweep.core.methods.{build}",
        reads=(*reads, "adapt.templates", "views."),
        protocol=protocol,
        learns=False,
        stateful=stateful,
    )


_METHOD_ROWS = (
    MethodRow(
        name="zero_shot",
        title="the prompt as it is, on the plain view",
        build="fpp_sweep.core.methods.frozen_prompt:ZeroShot",
        views=1,
        learns=False,
        baseline=True,
    ),
    _method("tpt", "a step down the entropy of the averaged confident views", _TPT, _TPT_READS, baseline=True),
    _method("ctpt", "TPT with C-TPT's dispersion of the text features", _TPT, _TPT_READS, _CTPT, baseline=True),
    _method("otpt", "TPT with O-TPT's orthogonality of the text features", _TPT, _TPT_READS, _OTPT, baseline=True),
    _method("tpt_sam", "`tpt` with SAM: the gradient at the worst point nearby", _SAM, _SAM_READS),
    _method("ctpt_sam", "`ctpt` with SAM", _SAM, _SAM_READS, _CTPT),
    _method("otpt_sam", "`otpt` with SAM", _SAM, _SAM_READS, _OTPT),
    _method("tpt_asam", "`tpt` with ASAM: SAM with a radius for each coordinate", _ASAM, _ASAM_READS, listed=False),
    _method("ctpt_asam", "`ctpt` with ASAM", _ASAM, _ASAM_READS, _CTPT, listed=False),
    _method("otpt_asam", "`otpt` with ASAM", _ASAM, _ASAM_READS, _OTPT, listed=False),
    _method("tpt_ent_ent", "two steps of TPT", _ENT_ENT, _RESELECTING_READS, listed=False),
    _method(
        "ctpt_ent_reg",
        "TPT's step, then one on the penalty of `ctpt` alone",
        _ENT_REG,
        _TWO_STEP_READS,
        _CTPT,
        listed=False,
    ),
    _method(
        "ctpt_reg_ent", "a step on the penalty of `ctpt`, then TPT's", _REG_ENT, _RESELECTING_READS, _CTPT, listed=False
    ),
    _method(
        "otpt_ent_reg",
        "TPT's step, then one on the penalty of `otpt` alone",
        _ENT_REG,
        _TWO_STEP_READS,
        _OTPT,
        listed=False,
    ),
    _method(
        "otpt_reg_ent", "a step on the penalty of `otpt`, then TPT's", _REG_ENT, _RESELECTING_READS, _OTPT, listed=False
    ),
    _method(
        "dynaprompt",
        "DynaPrompt: a buffer of prompts that evolves along the stream",
        _DYNAPROMPT,
        _STREAM_READS,
        stateful=True,
    ),
    _method(
        "dynaprompt_ctpt",
        "DynaPrompt with C-TPT's penalty",
        _DYNAPROMPT,
        _STREAM_READS,
        _CTPT,
        stateful=True,
        listed=False,
    ),
    _method(
        "dynaprompt_otpt",
        "DynaPrompt with O-TPT's penalty",
        _DYNAPROMPT,
        _STREAM_READS,
        _OTPT,
        stateful=True,
        listed=False,
    ),
    _method(
        "otpt_squared", "O-TPT as its paper writes it: |T T' - 1|^2", _TPT, _TPT_READS, _OTPT_SQUARED, listed=False
    ),
    _of_features("zero", "ZERO: the confident views vote", "zero:Zero", _VOTE_READS, protocol=_CROPS),
    _of_features(
        "zero_mean",
        "the mean prediction of the views that vote in ZERO",
        "zero:ZeroMean",
        ("adapt.vote_fraction",),
        protocol=_CROPS,
    ),
    _of_features("mta", "MTA: a robust mean shift over the views", "mta:Mta", protocol=_CROPS),
    _of_features(
        "tda",
        "TDA: caches of confident and of uncertain features along the stream",
        "tda:Tda",
        _CACHE_READS,
        protocol=_TDA_VIEWS,
        stateful=True,
    ),
    _of_features(
        "boostadapter",
        "BoostAdapter: TDA whose cache is boosted by the sample's own views",
        "tda:BoostAdapter",
        (*_CACHE_READS, "adapt.boost_delta", "adapt.boost_query"),
        protocol=_BOOST_VIEWS,
        stateful=True,
    ),
    _of_features(
        "tps",
        "TPS: a step down TPT's loss on the text features themselves",
        "tps:Tps",
        ("adapt.shift_lr", "adapt.shift_form", "adapt.view_fraction"),
        protocol=_AUGMIX_AND_CROPS,
    ),
    _method("atpt", "TPT with A-TPT's angles between nearest classes, which grow", _TPT, _TPT_READS, _ATPT),
    _method("atpt_released", "`atpt` as released: on most datasets angles shrink", _TPT, _TPT_READS, _ATPT_RELEASED),
    _method(
        "rtpt",
        "R-TPT: separate entropies of the views, and a weighted prediction",
        _RTPT,
        _TPT_READS,
        protocol=_AUGMIX_AND_CROPS,
    ),
    _method("soc", "TPT with SoC's Huber penalty on cosines", _SOC, (*_TPT_READS, "adapt.huber_delta"), _SOC_PENALTY),
    MethodRow(
        name="zero_shot_ensemble",
        title="zero-shot by an ensemble of templates instead of a prompt",
        build="fpp_sweep.core.methods.frozen_prompt:ZeroShot",
        reads=("adapt.templates",),
        views=1,
        learns=False,
        templates="openai",
    ),
)

# ------------------------------------------------------------ metrics

CONFORMAL = {  # conformal sets by the column of predictions that they make of `logits`, after a trial's tasks
    "lac_90": ConformalRow(form="lac", percent=90),
    "lac_95": ConformalRow(form="lac", percent=95),
    "aps_90": ConformalRow(form="aps", percent=90),
    "aps_95": ConformalRow(form="aps", percent=95),
}
_METRICS = "fpp_sweep.core.metrics"
_BLOCK_STATS = "fpp_sweep.statistics.block_stats"


def _metric(
    name: str,
    title: str,
    *,
    goal: Goal,
    heading: str,
    decimals: int,
    function: str = "",
    module: str = _METRICS,
    shown: bool = False,
) -> MetricRow:
    """Return the row of a metric that every trial has for each of its datasets; empty `function`: of the same name."""
    return MetricRow(
        name=name,
        title=title,
        goal=goal,
        heading=heading,
        decimals=decimals,
        compute=f"{module}:{function or name}",
        shown=shown,
    )


def _part_of_loss(name: str, title: str, *, heading: str, shown: bool = False) -> MetricRow:
    """Return the row of a part of a loss: calibration or refinement."""
    return _metric(name, title, goal="min", heading=heading, decimals=4, module=_BLOCK_STATS, shown=shown)


def _ranking(name: str, title: str, *, goal: Goal, heading: str, decimals: int, shown: bool = False) -> MetricRow:
    """Return the row of a metric of the images' ranking by confidence."""
    module = "fpp_sweep.statistics.ranking"
    return _metric(name, title, goal=goal, heading=heading, decimals=decimals, module=module, shown=shown)


def _on_request(name: str, title: str, *, heading: str, column: str) -> MetricRow:
    """Return the row of a metric that needs an optional column."""
    return MetricRow(
        name=name,
        title=title,
        goal="min",
        heading=heading,
        decimals=3,
        compute=f"{_METRICS}:{name}",
        columns=(column,),
        on_request=True,
    )


def _conformal(column: str) -> tuple[MetricRow, MetricRow]:
    """Return the rows of the size and the coverage of conformal sets."""
    sets = CONFORMAL[column]
    form, percent = sets.form.upper(), sets.percent
    code = f"fpp_sweep.statistics.conformal:{column}"
    size = MetricRow(
        name=f"{column}_size",
        title=f"mean number of classes in {form}'s conformal sets at {percent} %",
        goal="min",
        heading=f"{form}{percent} size",
        decimals=2,
        compute=f"{code}_size",
        columns=(column,),
        on_request=True,
    )
    coverage = replace(
        size,
        name=f"{column}_coverage",
        title="labels that these sets hold, percent",
        goal="max",
        heading=f"{form}{percent} cov",
        compute=f"{code}_coverage",
    )
    return size, coverage


def _conformal_rows() -> list[MetricRow]:
    rows: list[MetricRow] = []
    for column in CONFORMAL:
        rows += _conformal(column)
    return rows


def _cost(name: str, title: str, *, heading: str) -> MetricRow:
    """Return the row of a cost, which belongs to a whole trial."""
    return MetricRow(name=name, title=title, goal="min", heading=heading, decimals=1, merges="sum")


_METRIC_ROWS = (
    _metric(
        "accuracy",
        "samples whose most probable class is the label, percent",
        goal="max",
        heading="acc",
        decimals=2,
        shown=True,
    ),
    _metric("accuracy_top5", "the same for the five most probable classes", goal="max", heading="top-5", decimals=2),
    _metric(
        "ece",
        "expected calibration error over 20 equal bins, percent",
        goal="min",
        heading="ECE",
        decimals=2,
        function="expected_calibration_error",
        shown=True,
    ),
    _metric(
        "smooth_ece",
        "ECE smoothed by a Gaussian of width 0.1, percent",
        goal="min",
        heading="smooth",
        decimals=2,
        function="smooth_error",
        module=_BLOCK_STATS,
    ),
    _metric(
        "debiased_ece",
        "ECE less what few images add to it, percent",
        goal="min",
        heading="debiased",
        decimals=2,
        function="debiased_error",
        module=_BLOCK_STATS,
    ),
    _metric(
        "sce",
        "static calibration error: ECE of every class, averaged, percent",
        goal="min",
        heading="SCE",
        decimals=4,
        function="static_calibration_error",
    ),
    _metric(
        "aece",
        "ECE over bins of equally many samples, percent",
        goal="min",
        heading="AECE",
        decimals=2,
        function="adaptive_calibration_error",
    ),
    _metric(
        "mce",
        "the largest gap of ECE's bins, percent",
        goal="min",
        heading="MCE",
        decimals=2,
        function="maximum_calibration_error",
    ),
    _metric(
        "aurc",
        "area under the risk-coverage curve",
        goal="min",
        heading="AURC",
        decimals=4,
        function="area_under_risk_coverage",
    ),
    _metric(
        "nll",
        "negative log-likelihood of the labels, nats",
        goal="min",
        heading="NLL",
        decimals=4,
        function="log_loss",
        shown=True,
    ),
    _part_of_loss(
        "nll_refinement", "NLL less what calibration of each bin would save, nats", heading="refine", shown=True
    ),
    _part_of_loss(
        "nll_calibration", "divergence of accuracy and mean confidence, over ECE's bins, nats", heading="NLL cal"
    ),
    _metric(
        "brier",
        "squared distance of the probabilities from the label",
        goal="min",
        heading="Brier",
        decimals=4,
        function="brier_score",
    ),
    _part_of_loss(
        "brier_refinement",
        "the Brier score less what a shift of each bin's confidences would save",
        heading="Brier ref",
    ),
    _part_of_loss(
        "brier_calibration", "squared gap of accuracy and mean confidence, over ECE's bins", heading="Brier cal"
    ),
    _ranking(
        "auroc",
        "how often a right answer has more confidence than a wrong one; known classes only, not out-of-distribution",
        goal="max",
        heading="AUROC",
        decimals=4,
        shown=True,
    ),
    _ranking(
        "fpr95",
        "wrong answers as confident as 95 % of the right ones, percent; known classes only, as `auroc`",
        goal="min",
        heading="FPR95",
        decimals=2,
    ),
    _ranking(
        "accuracy_at_80",
        "accuracy of the 80 % of samples with the most confidence, percent",
        goal="max",
        heading="acc@80",
        decimals=2,
    ),
    _ranking("accuracy_at_90", "the same for 90 %", goal="max", heading="acc@90", decimals=2),
    _on_request("sharpness", "rise of the entropy to the worst point nearby", heading="sharp", column="sharpness"),
    _on_request("fisher_rao", "mean square of <prompt, gradient of the entropy>", heading="F-R", column="product"),
    _on_request("fisher_rao_root", "the root of `fisher_rao`", heading="F-R root", column="product"),
    *_conformal_rows(),
    _cost("seconds", "seconds that pretraining and adaptation took when they were computed", heading="seconds"),
)

# ------------------------------------------------------------ post-hoc maps

_POSTHOC_ROWS = (
    PosthocRow(
        name="temperature_val",
        title="logits divided by the temperature of least NLL on the validation split",
        fitted_on="val",
    ),
    PosthocRow(
        name="temperature_transfer",
        title="the same, fitted on the validation splits of the other datasets",
        fitted_on="val of other datasets",
    ),
    PosthocRow(name="isotonic", title="the confidence by isotonic regression on the validation split", fitted_on="val"),
    PosthocRow(
        name="temperature_oracle",
        title="the temperature of least NLL on the measured images: a bound",
        fitted_on="the measured labels",
    ),
)

# ------------------------------------------------------------ the tables

METHODS: dict[str, MethodRow] = {row.name: row for row in _METHOD_ROWS}
METRICS: dict[str, MetricRow] = {row.name: row for row in _METRIC_ROWS}
POSTHOC = {row.name: row for row in _POSTHOC_ROWS}
BUILT_IN_SAMPLERS = ("auto", "gp", "tpe", "nsga2", "random", "grid")  # search/samplers.py builds them
SAMPLERS: dict[str, SamplerRow] = {}  # rows that plugins define
# columns of `Sweep.table()` beside those of settings and metrics
COLUMNS_OF_TRIALS = ("name", "kind", "state", "origin", "reason", "marks", "on_front", "duration")
COLUMNS = {  # optional columns of the predictions, stored if they are requested
    "logits": "the logits of all classes for the plain view",
    "sharpness": "rise of the entropy from the adapted prompt to the worst point nearby (measure.*)",
    "product": "inner product of the adapted prompt and the gradient of the entropy there (measure.views)",
}
SETTINGS_OF_COLUMN = {  # the settings that a column depends on, beside those of the method
    "sharpness": ("measure.", "adapt.view_fraction"),
    "product": ("measure.views", "adapt.view_fraction"),
}
BUILT_IN = tuple(METHODS)
ZERO_SHOT = "zero_shot"  # the prompt as it is
TPT = "tpt"
COMPARED = tuple(row.name for row in METHODS.values() if row.baseline)
PUBLISHED = ("fpp_paper", "fpp_code")  # baselines with published settings of FPP
# the two that every reader asks for, whatever was searched
ACCURACY = "accuracy"
ECE = "ece"
ACCURACIES = (ACCURACY, "accuracy_top5")  # metrics that post-hoc maps do not change


def sign(goal: Goal) -> int:
    """Return the factor that turns values of this goal into values of which more is better."""
    if goal == "max":
        return 1
    return -1


def listed_methods() -> list[str]:
    """Return the methods that help texts and lists name; the others are reachable by name and by `reproduce`."""
    return [row.name for row in METHODS.values() if row.listed]


def method(name: str) -> MethodRow:
    """Return a method's row."""
    if name not in METHODS:
        raise _unknown_row("method", name, METHODS, listed=listed_methods())
    return METHODS[name]


@cache
def parts_of(name: str) -> MetricParts:
    """Return the parts of a metric's name.

    >>> parts_of("ece@temperature_val/dtd")
    MetricParts(stem='ece', posthoc='temperature_val', dataset='dtd')
    """
    of_average, _, dataset = name.partition("/")
    stem, _, posthoc = of_average.partition("@")
    return MetricParts(stem, posthoc, dataset)


def metric(name: str) -> MetricRow:
    """Return the row of a metric, of one dataset or after a post-hoc map: `ece@isotonic/dtd` is an `ece`."""
    stem, posthoc, _ = parts_of(name)
    if posthoc and posthoc not in POSTHOC:
        raise unknown("post-hoc map", posthoc, POSTHOC)
    if stem not in METRICS:
        raise _unknown_row("metric", stem, METRICS, listed=METRICS)
    return METRICS[stem]


def is_shown(name: str) -> bool:
    """Return whether tables of a trial have a metric by default; those of plugins and optional columns were asked for.

    >>> is_shown("ece@temperature_val"), is_shown("mce")
    (True, False)
    """
    row = METRICS.get(parts_of(name).stem)
    return row is None or row.shown or bool(row.digest) or row.on_request


def _unknown_row(kind: str, name: str, table: Iterable[str], listed: Iterable[str]) -> InputError:
    """Return an error that names the nearest row, or says that a plugin may bring the row."""
    error = unknown(kind, name, table, listed)
    if "did you mean" in error.problem:
        return error
    return InputError(f"{error.problem}; the {kind} of a plugin needs --plugin FILE, in Python load_plugins(FILE)")


def require_sampler(name: str) -> None:
    """Raise InputError if neither the package nor a plugin has a sampler of that name."""
    names = [*BUILT_IN_SAMPLERS, *SAMPLERS]
    if name not in names:
        raise _unknown_row("sampler", name, names, listed=names)


def dataset_metrics(columns: Iterable[str] = ()) -> list[MetricRow]:
    """Return the metrics of predictions that have these optional columns, in the order of tables."""
    present = set(columns)
    rows = []
    for row in METRICS.values():
        if row.of_dataset and (not row.on_request or present.issuperset(row.columns)):
            rows.append(row)
    return rows


def require_measurable(methods: Iterable[str], columns: Iterable[str]) -> None:
    """Raise InputError if a column is measured at adapted prompts and a method has none for each sample."""
    measured = [column for column in sorted(columns) if column in SETTINGS_OF_COLUMN]
    if not measured:
        return
    for name in methods:
        reason = _why_not_measurable(method(name))
        if reason:
            raise InputError(f"{measured[0]} cannot be measured of method {name}: {reason}; leave one of them out")


def _why_not_measurable(row: MethodRow) -> str:
    """Return why a method has no adapted prompt for each sample; empty if it has."""
    if row.stateful:
        return "its prompts are those of a stream"
    if row.views is not None:
        return f"it uses {row.views} of a sample's views only"
    if not row.learns:
        return "it leaves the prompt as it is"
    if isinstance(row.build, str):
        return ""
    if hasattr(row.build, "adapt_contexts") and hasattr(row.build, "classify"):
        return ""
    return "it has no `adapt_contexts` and `classify` (docs/plugins.md)"


def code_of(code: Code) -> Callable[..., Any]:
    """Return the function or class that a row names, and import its module if need be."""
    if not isinstance(code, str):
        return code
    module, _, attribute = code.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), attribute)
    return function


# ------------------------------------------------------------ rows of plugins


def rows() -> list[Row]:
    """Return the rows of all tables."""
    return [*METHODS.values(), *METRICS.values(), *SAMPLERS.values()]


def add(row: Row) -> None:
    """Add a plugin's row; raise InputError if its name is taken."""
    table = _table_of(row)
    names = [*table]
    if isinstance(row, MethodRow):
        names += PUBLISHED
    if isinstance(row, SamplerRow):
        names += BUILT_IN_SAMPLERS
    if row.name in names:
        raise InputError(f"registers {kind_of(row)} {row.name!r}, which exists already; give it another name")
    table[row.name] = row


def remove(row: Row) -> None:
    """Remove a plugin's row."""
    _table_of(row).pop(row.name, None)


def kind_of(row: Row) -> Literal["method", "metric", "sampler"]:
    if isinstance(row, MethodRow):
        return "method"
    if isinstance(row, SamplerRow):
        return "sampler"
    return "metric"


def _table_of(row: Row) -> dict[str, Any]:
    if isinstance(row, MethodRow):
        return METHODS
    if isinstance(row, SamplerRow):
        return SAMPLERS
    return METRICS
