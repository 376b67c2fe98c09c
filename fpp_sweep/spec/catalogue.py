"""The registry of all methods, metrics and samplers of plugins: all that a sweep must know of them, without torch.

Checks, search spaces, the JSON schema, result tables and the contract tests are made from these rows, so a row is all
that a new method or metric needs beside its code. Built-in rows stand in catalogue.toml, since rows beside the code
would import torch at every start of a command. A plugin (docs/plugins.md) adds rows whose code is the function itself.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from fpp_sweep.spec.errors import InputError, unknown

Goal = Literal["max", "min"]
ConformalForm = Literal["lac", "aps"]
ViewKind = Literal["augmix", "crops", "plain"]  # random crops with AugMix, random crops alone, the plain view alone
Code = str | Callable[..., Any]


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
    protocol: Mapping[str, ViewKind] | None = None  # the released views by group; none: those of the dataset
    templates: str = ""  # the templates that it uses unless `adapt.templates` says otherwise; empty: the prompt
    listed: bool = True  # False keeps it out of help texts and lists; it is reachable by its name
    digest: str = ""  # digest of the plugin that defines the row; empty: built in

    @property
    def ordered(self) -> bool:
        """True if the stream may come in any order of `adapt.order`; other streams come in the dataset's order."""
        return self.stateful and "adapt.order".startswith(self.reads)

    def views_on(self, group: str) -> ViewKind | None:
        """Return the kind of views that the method's released program draws on a group of datasets.

        Groups that it does not know are as `fine_grained`, but for AugMix. None stands for the views of the dataset.
        """
        if self.protocol is None:
            return None
        kind = self.protocol.get(group, self.protocol["fine_grained"])
        if group not in self.protocol and kind == "augmix":
            return None
        return kind

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
    columns: Sequence[str] = ()  # optional columns of the predictions that it needs
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
    """A map of calibration after the fact, `work.posthoc`; statistics/posthoc.py computes it."""

    name: str
    title: str
    fitted_on: Literal["val", "val of other datasets", "the measured labels"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformalRow:
    """Conformal sets, made of all probabilities of a trial's predictions; statistics/posthoc.py computes them."""

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


# ------------------------------------------------------------ the tables


def _fields_of_method(name: str) -> dict[str, Any]:
    """Return the fields of a built-in method, with those of the methods that it is like."""
    fields: dict[str, Any] = {}
    own = dict(BUILT_IN_TABLES["methods"][name])
    for other in own.pop("like", []):
        fields |= _fields_of_method(other)
    return fields | own


def _method_row(name: str) -> MethodRow:
    fields = _fields_of_method(name)
    fields.pop("released", None)  # released.py reads it
    reads = fields.pop("reads", [])
    if "penalty" in fields:
        reads = [*reads, "adapt.penalty_weight"]
    return MethodRow(name=name, reads=tuple(reads), **fields)


BUILT_IN_TABLES = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text())
METHODS = {name: _method_row(name) for name in BUILT_IN_TABLES["methods"]}
METRICS = {name: MetricRow(name=name, **fields) for name, fields in BUILT_IN_TABLES["metrics"].items()}
POSTHOC = {name: PosthocRow(name=name, **fields) for name, fields in BUILT_IN_TABLES["posthoc"].items()}
CONFORMAL = {  # conformal sets by the column of predictions that they make of `logits`, after a trial's tasks
    "lac_90": ConformalRow(form="lac", percent=90),
    "lac_95": ConformalRow(form="lac", percent=95),
    "aps_90": ConformalRow(form="aps", percent=90),
    "aps_95": ConformalRow(form="aps", percent=95),
}
BUILT_IN_SAMPLERS = ("auto", "gp", "tpe", "random", "grid")  # search/samplers.py builds them
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
COMPARED = (ZERO_SHOT, TPT, "ctpt", "otpt")  # a sweep compares its trials with them by default
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


Function = TypeVar("Function", bound=Callable[..., Any])
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")  # a part of file names, of words with / and @, and of lists
_EVERYTHING = ("adapt.", "views.")  # the settings that a plugin's method reads unless it says otherwise


class Registration(NamedTuple):
    """The plugin whose rows are being registered."""

    digest: str
    settings: Collection[str]  # keys of all settings


_registering: list[Registration] = []  # by the plugin that is being executed
TABLES: dict[type[Row], dict[str, Any]] = {MethodRow: METHODS, MetricRow: METRICS, SamplerRow: SAMPLERS}


def add(row: Row) -> None:
    """Add a plugin's row; raise InputError if its name is taken."""
    taken = {MethodRow: PUBLISHED, MetricRow: (), SamplerRow: BUILT_IN_SAMPLERS}
    table = TABLES[type(row)]
    if row.name in table or row.name in taken[type(row)]:
        kind = type(row).__name__.removesuffix("Row").lower()
        raise InputError(f"registers {kind} {row.name!r}, which exists already; give it another name")
    table[row.name] = row


def remove(row: Row) -> None:
    """Remove a plugin's row."""
    TABLES[type(row)].pop(row.name, None)


def rows_of_plugins() -> list[Row]:
    """Return the rows that plugins have added."""
    return [row for table in TABLES.values() for row in table.values() if row.digest]


# ------------------------------------------------------------ decorators, which fpp_sweep offers by their last word


def register_method(
    *,
    name: str | None = None,
    views: int | None = None,
    learns: bool = True,
    stateful: bool = False,
    reads: Sequence[str] = _EVERYTHING,
) -> Callable[[Function], Function]:
    """Register a function or class that builds a method from (adapt, penalty, weight).

    >>> @register_method(learns=False, reads=["adapt.view_fraction"])  # doctest: +SKIP
    ... class Vote: ...  # with `start` and `predict` of core.methods.base.Method
    """
    settings = _registration().settings
    for word in reads:
        if not any(setting.startswith(word) for setting in settings):
            raise unknown("setting", word, settings)
    read_settings = tuple(reads)
    if views != 1:  # results depend on the views that the method sees
        read_settings = (*read_settings, "views.")
    return _registers(MethodRow, "build", name, views=views, learns=learns, stateful=stateful, reads=read_settings)


def register_penalty(
    *, weight: float, weight_on_shifts: float | None = None, name: str | None = None
) -> Callable[[Function], Function]:
    """Register a function of unit text features (*B, K, D) -> (*B,): a method that adds it to TPT's loss.

    >>> @register_penalty(weight=2.0)  # doctest: +SKIP
    ... def spread(text):
    ...     return -text.var(-2).sum(-1)
    """
    if weight_on_shifts is None:
        weight_on_shifts = weight
    for number in (weight, weight_on_shifts):
        if not isinstance(number, int | float) or not math.isfinite(number):
            raise InputError(f"weights must be finite numbers ({number!r})")
    return _registers(
        MethodRow,
        "penalty",
        name,
        build=method(TPT).build,
        weight=weight,
        weight_on_shifts=weight_on_shifts,
        reads=_EVERYTHING,
    )


def register_metric(
    *, goal: Goal, heading: str = "", decimals: int = 2, columns: Sequence[str] = (), name: str | None = None
) -> Callable[[Function], Function]:
    """Register a function of a dataset's `Predictions`, with the optional columns that it needs.

    >>> @register_metric(goal="min")  # doctest: +SKIP
    ... def mistakes(predictions):
    ...     return float((~predictions.correct).sum())
    """
    if goal not in get_args(Goal):
        raise InputError(f"goal must be one of {', '.join(get_args(Goal))} ({goal!r})")
    for column in columns:
        if column not in COLUMNS:
            raise unknown("column", column, COLUMNS)
    return _registers(MetricRow, "compute", name, goal=goal, heading=heading, decimals=decimals, columns=tuple(columns))


def register_sampler(*, name: str | None = None) -> Callable[[Function], Function]:
    """Register a class of Optuna's kind, or a function, that builds a sampler from a seed.

    >>> @register_sampler()  # doctest: +SKIP
    ... def narrow_tpe(seed):
    ...     return optuna.samplers.TPESampler(seed=seed, gamma=lambda n: 3)
    """
    return _registers(SamplerRow, "build", name)


def _registers(row_type: type[Row], code_field: str, name: str | None, **fields: Any) -> Callable[[Function], Function]:
    """Return a decorator that adds a row of a type: the code in one field, its name and title, and other fields."""

    def register(code: Function) -> Function:
        row = {**_described(code, name), **fields, code_field: code}
        if row_type is MetricRow and not row["heading"]:
            row["heading"] = row["name"]
        add(row_type(**row))
        return code

    return register


def _described(code: Any, name: str | None) -> dict[str, Any]:
    """Return the fields of a row that its code gives: name, title and the digest of the plugin."""
    registration = _registration()
    if name is None:
        name = code.__name__
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        wanted = "must begin with a letter or _, and have letters, digits, _ and - only, at most 64"
        raise InputError(f"name {wanted} ({name!r})")
    if name in (*COLUMNS_OF_TRIALS, *registration.settings):
        raise InputError(f"name {name!r} is that of a column of each sweep's table; choose another")
    title = (code.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return {"name": name, "title": title, "digest": registration.digest}


def _registration() -> Registration:
    if not _registering:
        raise InputError("methods, metrics and samplers are registered by files that --plugin names")
    return _registering[-1]


@contextmanager
def registering(digest: str, settings: Collection[str]) -> Iterator[None]:
    """Let the decorators in the block register rows of a plugin, whose methods may read these settings."""
    _registering.append(Registration(digest, settings))
    try:
        yield
    finally:
        _registering.pop()
