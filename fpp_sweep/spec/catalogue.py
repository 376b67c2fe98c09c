"""Every method and every metric, a row each: all that a sweep needs to know of them, without torch.

Checks, search spaces, the JSON schema, tables, headings and the contract tests are made from these rows. A row names
the code that computes it as `module:attribute`, which is imported when it is first used. A plugin (docs/plugins.md)
adds rows of its own, whose code is the function itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from fpp_sweep.spec.errors import InputError, unknown

Goal = Literal["max", "min"]
Code = str | Callable[..., Any]

_METHODS = "fpp_sweep.core.methods"
_TPT = f"{_METHODS}.tpt:Tpt"
_PENALTIES = f"{_METHODS}.penalties"
_METRICS = "fpp_sweep.core.metrics"
_SMOOTH, _DEBIASED = (f"fpp_sweep.statistics.block_stats:{name}" for name in ("smooth_error", "debiased_error"))
_STEP = ("adapt.steps", "adapt.lr", "adapt.weight_decay", "adapt.optimizer", "adapt.view_fraction", "views.")
_STREAM = (
    "adapt.lr",
    "adapt.weight_decay",
    "adapt.view_fraction",
    "adapt.slots",
    "adapt.slot_rule",
    "adapt.order",
    "views.",
)
_SHARP, _PRODUCT = ("sharpness",), ("product",)
_ONCE = _STEP[1:]  # of a method whose number of steps is given


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """A method; `build(adapt=AdaptConfig, penalty=function or None, weight=float)` gives a core.methods.base.Method."""

    name: str
    title: str
    build: Code
    penalty: Code | None = None  # of the text features, added to the loss
    weight: float = 0.0  # of the penalty, as published
    weight_on_shifts: float = 0.0  # the same on ImageNet's shifts
    views: int | None = None  # how many it looks at, the plain one first; none: all of views.count
    learns: bool = True  # whether it changes the prompt
    stateful: bool = False  # whether a sample's result depends on the samples before it
    reads: tuple[str, ...] = _STEP  # settings, or beginnings of them, that its results depend on
    baseline: bool = False  # whether a sweep compares its trials with it unless told otherwise
    digest: str = ""  # of the plugin that it comes from; empty: built in

    @property
    def ordered(self) -> bool:
        """Whether its stream may come in any order of `adapt.order`; other streams come in that of the dataset."""
        return self.stateful and "adapt.order".startswith(self.reads)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """A metric: `compute(Predictions) -> float` of one dataset; without it, what a whole trial took."""

    name: str
    title: str
    goal: Goal
    heading: str
    decimals: int  # as the papers print it
    compute: Code | None = None
    merges: Literal["mean", "sum"] = "mean"  # over datasets and seeds
    columns: tuple[str, ...] = ()  # optional columns of the predictions that it needs
    on_request: bool = False  # computed only where its columns are asked for, because they cost much
    digest: str = ""  # of the plugin that it comes from; empty: built in

    @property
    def of_dataset(self) -> bool:
        return self.compute is not None


def _metric(
    name: str, goal: Goal, heading: str, decimals: int, code: str, title: str, columns: tuple[str, ...] = ()
) -> MetricRow:
    return MetricRow(
        name=name,
        title=title,
        goal=goal,
        heading=heading,
        decimals=decimals,
        compute=code if ":" in code else f"{_METRICS}:{code}",
        columns=columns,
        on_request=bool(columns),
    )


def _cost(name: str, heading: str, title: str) -> MetricRow:
    return MetricRow(name=name, title=title, goal="min", heading=heading, decimals=1, merges="sum")


_FAMILY: dict[str, dict[str, Any]] = {  # the penalty of a method, by the beginning of its name
    "tpt": {"reads": _STEP},
    "ctpt": {"penalty": f"{_PENALTIES}:dispersion", "weight": 50.0, "weight_on_shifts": 20.0},
    "otpt": {"penalty": f"{_PENALTIES}:orthogonality", "weight": 18.0, "weight_on_shifts": 2.0},
}


def _tuned(
    name: str, title: str, build: str = _TPT, reads: tuple[str, ...] = _STEP, more: tuple[str, ...] = (), **facts: Any
) -> MethodRow:
    """A method that tunes the prompt; `more` are settings that it reads beside those of the plain step."""
    family = _FAMILY[name.partition("_")[0]]
    reads = (*reads, *more, *(("adapt.penalty_weight",) if "penalty" in family else ()))
    return MethodRow(name=name, title=title, build=build, **{**family, "reads": reads, **facts})


def _sharpness_aware(kind: str, title: str) -> list[MethodRow]:
    build = f"{_METHODS}.sharpness_aware:{kind.capitalize()}"
    more = (f"adapt.{kind}_rho", "adapt.reselect")
    return [_tuned(f"{name}_{kind}", f"{title}, in the step of `{name}`", build, more=more) for name in _FAMILY]


def _two_steps(name: str, title: str, *more: str) -> MethodRow:
    build = "".join(word.capitalize() for word in name.split("_")[1:])
    return _tuned(name, title, f"{_METHODS}.two_steps:{build}", _ONCE, ("adapt.keep_optimizer", *more))


def _dynaprompt(name: str, title: str, **facts: Any) -> MethodRow:
    reads = (*_STREAM, *(("adapt.penalty_weight",) if facts else ()))
    build = f"{_METHODS}.dynaprompt:DynaPrompt"
    return MethodRow(name=name, title=title, build=build, stateful=True, reads=reads, **facts)


_METHOD_ROWS = (
    MethodRow(
        name="zero_shot",
        title="the prompt as it is, on the plain view",
        build=f"{_METHODS}.tpt:ZeroShot",
        views=1,
        learns=False,
        reads=(),
        baseline=True,
    ),
    _tuned("tpt", "a step down the entropy of the averaged confident views", baseline=True),
    _tuned("ctpt", "TPT with C-TPT's dispersion of the text features", baseline=True),
    _tuned("otpt", "TPT with O-TPT's orthogonality of the text features", baseline=True),
    *_sharpness_aware("sam", "SAM: the gradient at the worst point nearby"),
    *_sharpness_aware("asam", "ASAM: SAM with a radius for each coordinate"),
    _two_steps("tpt_ent_ent", "two steps of TPT", "adapt.reselect"),
    _two_steps("ctpt_ent_reg", "TPT's step, then one on the penalty of `ctpt` alone"),
    _two_steps("ctpt_reg_ent", "a step on the penalty of `ctpt` alone, then TPT's", "adapt.reselect"),
    _two_steps("otpt_ent_reg", "TPT's step, then one on the penalty of `otpt` alone"),
    _two_steps("otpt_reg_ent", "a step on the penalty of `otpt` alone, then TPT's", "adapt.reselect"),
    _dynaprompt("dynaprompt", "DynaPrompt: a buffer of prompts that evolves along the stream"),
    _dynaprompt("dynaprompt_ctpt", "DynaPrompt with C-TPT's penalty", **_FAMILY["ctpt"]),
    _dynaprompt("dynaprompt_otpt", "DynaPrompt with O-TPT's penalty", **_FAMILY["otpt"]),
    _tuned("otpt_squared", "O-TPT as its paper writes it: |T T' - 1|^2", penalty=f"{_PENALTIES}:squared_orthogonality"),
)
_METRIC_ROWS = (
    _metric("accuracy", "max", "acc", 2, "accuracy", "samples whose most probable class is the label, percent"),
    _metric("accuracy_top5", "max", "top-5", 2, "accuracy_top5", "the same for the five most probable classes"),
    _metric("ece", "min", "ECE", 2, "expected_error", "expected calibration error over 20 equal bins, percent"),
    _metric("smooth_ece", "min", "smooth", 2, _SMOOTH, "ECE smoothed by a Gaussian of width 0.1, percent"),
    _metric("debiased_ece", "min", "debiased", 2, _DEBIASED, "ECE less what few images add to it, percent"),
    _metric("sce", "min", "SCE", 4, "static_error", "static calibration error: ECE of every class, averaged, percent"),
    _metric("aece", "min", "AECE", 2, "adaptive_error", "ECE over bins of equally many samples, percent"),
    _metric("mce", "min", "MCE", 2, "largest_error", "the largest gap of ECE's bins, percent"),
    _metric("aurc", "min", "AURC", 4, "area_under_risk_coverage", "area under the risk-coverage curve"),
    _metric("nll", "min", "NLL", 4, "log_loss", "negative log-likelihood of the labels, nats"),
    _metric("brier", "min", "Brier", 4, "brier_score", "squared distance of the probabilities from the label"),
    _metric("sharpness", "min", "sharp", 3, "sharpness", "rise of the entropy to the worst point nearby", _SHARP),
    _metric("fisher_rao", "min", "F-R", 3, "fisher_rao", "mean square of <prompt, gradient of the entropy>", _PRODUCT),
    _metric("fisher_rao_root", "min", "F-R root", 3, "fisher_rao_root", "the root of `fisher_rao`", _PRODUCT),
    _cost("seconds", "seconds", "seconds of work that a trial took, over all workers"),
    _cost("device_seconds", "device s", "seconds that workers were held for a trial"),
)
METHODS: dict[str, MethodRow] = {row.name: row for row in _METHOD_ROWS}
METRICS: dict[str, MetricRow] = {row.name: row for row in _METRIC_ROWS}

COLUMNS = {  # of a sample, kept where somebody asks for them
    "logits": "the logits of all classes for the plain view",
    "sharpness": "rise of the entropy from the adapted prompt to the worst point nearby (measure.*)",
    "product": "inner product of the adapted prompt and the gradient of the entropy there (measure.views)",
}
READ_FOR = {
    "sharpness": ("measure.", "adapt.view_fraction"),
    "product": ("measure.views", "adapt.view_fraction"),
}  # settings
PLAIN = next(row.name for row in METHODS.values() if not row.learns)  # the prompt as it is
DEFAULT = next(row.name for row in METHODS.values() if row.learns)
BUILT_IN = tuple(METHODS)
COMPARED = tuple(row.name for row in METHODS.values() if row.baseline)
# the two that every reader asks for, whatever was searched
ACCURACY = next(row.name for row in METRICS.values() if row.compute == f"{_METRICS}:accuracy")
ECE = next(row.name for row in METRICS.values() if row.compute == f"{_METRICS}:expected_error")


def sign(goal: Goal) -> int:
    """What turns values of this goal into values of which more is better."""
    return 1 if goal == "max" else -1


def method(name: str) -> MethodRow:
    """A method's row, or an error that names the nearest."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def metric(name: str) -> MetricRow:
    """The row of a metric, which may be of one dataset: `ece/dtd` is an `ece`."""
    stem = name.partition("/")[0]
    if stem not in METRICS:
        raise unknown("metric", stem, METRICS)
    return METRICS[stem]


def qualities(columns: Iterable[str] = ()) -> list[MetricRow]:
    """The metrics that a dataset's predictions have, in the order in which tables show them: those that every trial
    has, and those whose columns were asked for."""
    asked = set(columns)
    rows = [row for row in METRICS.values() if row.of_dataset]
    return [row for row in rows if not row.on_request or asked.issuperset(row.columns)]


def require_measurable(methods: Iterable[str], columns: Iterable[str]) -> None:
    """InputError if a method has no adapted prompt of each sample, at which one of the columns is to be measured."""
    asked = [column for column in sorted(columns) if column in READ_FOR]
    for name in methods if asked else ():
        row = method(name)
        plugin = None if isinstance(row.build, str) else row.build
        reason = None
        if row.stateful:
            reason = "its prompts are those of a stream"
        elif row.views is not None:
            reason = f"it looks at {row.views} of a sample's views only"
        elif plugin and not (hasattr(plugin, "adapted") and hasattr(plugin, "classified")):
            reason = "it has no `adapted` and `classified` (docs/plugins.md)"
        if reason:
            raise InputError(f"{asked[0]} cannot be measured of method {name}: {reason}; leave one of them out")


def code_of(code: Code) -> Callable[..., Any]:
    """What a row's code stands for."""
    if not isinstance(code, str):
        return code
    module, _, attribute = code.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), attribute)
    return found


def add(row: MethodRow | MetricRow) -> None:
    """Take in a plugin's row; InputError if its name is taken."""
    kind = "method" if isinstance(row, MethodRow) else "metric"
    table: dict[str, Any] = METHODS if isinstance(row, MethodRow) else METRICS
    if row.name in table:
        raise InputError(f"registers {kind} {row.name!r}, which there is already; give it another name")
    table[row.name] = row


def remove(rows: Callable[[MethodRow | MetricRow], bool]) -> None:
    """Take plugins' rows out again."""
    for table in (METHODS, METRICS):
        for name in [name for name, row in table.items() if rows(row)]:
            del table[name]


def markdown() -> str:
    """The tables of docs/methods.md: `python -c "from fpp_sweep import catalogue; print(catalogue.markdown())"`."""
    methods = [
        "| method | what it does | views | penalty's weight (on shifts) | settings that it reads |",
        "|---|---|---|---|---|",
    ]
    for row in METHODS.values():
        weight = f"{row.weight:g} ({row.weight_on_shifts:g})" if row.penalty else ""
        reads = ", ".join(f"`{key}{'*' if key.endswith('.') else ''}`" for key in row.reads)
        views = "all" if row.views is None else str(row.views)
        methods.append(f"| `{row.name}` | {row.title} | {views} | {weight} | {reads} |")
    metrics = ["| metric | what it is | goal | over datasets |", "|---|---|---|---|"]
    metrics += [f"| `{row.name}` | {row.title} | {row.goal} | {row.merges} |" for row in METRICS.values()]
    return "\n".join([*methods, "", *metrics])
