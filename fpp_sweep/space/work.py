"""How a space is searched, and what its trials are run on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Literal

from fpp_sweep.space.rules import (
    LATER,
    Rule,
    as_mapping,
    check_fields,
    duration,
    expect,
    known_name,
    list_of,
    number,
    one_of,
    rules,
    set_field,
    shown,
    under,
    whole,
)
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.specs import OnBadImage

Sampler = Literal["tpe", "nsga2", "gp", "random", "grid"]
Split = Literal["train", "val", "test"]
Positive = Annotated[int, whole(1)]
Seconds = Annotated[float, duration()]
Processes = Annotated[int, whole(1, 1024)]  # or threads; more is a slip that stops a machine
LEAST = 0.01  # of a CPU or GPU: a machine's cores are hundreds of them
Share = Annotated[float, number(least=0)]  # of a machine's GPUs

DEFAULT_FLOOR = 5.0  # points of accuracy below zero-shot, beyond which a trial gets no mark
PUBLISHED = ("paper", "code")  # who published settings of FPP; each is a baseline, and a point that is tried first
BASELINES = (*catalogue.COMPARED, *(f"fpp_{origin}" for origin in PUBLISHED))
BASELINE = one_of("baseline", lambda: dict.fromkeys([*catalogue.METHODS, *BASELINES]))
COLUMN = one_of("column", lambda: catalogue.COLUMNS)
STEERED = ("trials", "wall_clock", "concurrency")  # of a search, what may change while it runs


def _fraction(value: Any) -> float:
    """A number between 0 and 1, which may be written as 1/16."""
    wanted = "must be a number above 0 and below 1, such as 1/16"
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}/[1-9][0-9]{0,8}", value):
        value = float(Fraction(value))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    expect(is_number and 0 < value < 1, f"{wanted}, got {shown(value)}")
    return float(value)


FRACTION = Rule(_fraction, lambda: {"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^[0-9]+/[0-9]+$"}]})


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """When a trial is stopped after a part of its images: where it is all but certain that another beats it."""

    rungs: Annotated[tuple[float, ...], list_of(FRACTION, least=1)] = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of the images
    confidence: Annotated[float, number()] = 0.99  # of each objective
    reserve: Positive = 8  # finished trials before the first that is stopped

    def __post_init__(self) -> None:
        check_fields(self)
        expect(self.rungs == tuple(sorted(self.rungs)), "must rise", "rungs")
        expect(0.5 < self.confidence < 1, f"must be above 0.5 and below 1, got {self.confidence}", "confidence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalists:
    """The final stage: trials that run again after the search, with more seeds and fresh images."""

    count: Positive = 6  # trials at most
    seeds: Annotated[int, whole(1, 100)] = 3  # of the pretraining, those of the search included; 1 turns the stage off
    images: Positive | None = None  # fresh ones of each dataset; none: as many as the search used, where there are some

    def __post_init__(self) -> None:
        check_fields(self)


def _record(kind: Any) -> Rule:
    """A mapping with the keys of a dataclass."""

    def check(value: Any) -> Any:
        settings = asdict(value) if isinstance(value, kind) else as_mapping(value)
        return kind(**{known_name("key", key, rules(kind)): settings[key] for key in settings})

    def schema() -> dict[str, Any]:
        fields = {key: rule.schema() for key, rule in rules(kind).items()}
        return {"type": "object", "properties": fields, "additionalProperties": False}

    return Rule(check, schema)


def _margins(value: Any) -> Any:
    """Margins by metric, such as {accuracy: 1, ece: 0.5}."""
    margins = {}
    for metric, margin in as_mapping(value).items():
        with under(metric):
            known_name("metric", metric.partition("/")[0], catalogue.METRICS)
            margins[metric] = number(least=0).check(margin)
    return margins


def _margin_schema() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": {"type": "number", "minimum": 0}}


def _switch(kind: Any) -> Rule:
    """`true` is it with its defaults, `false` none."""

    def check(value: Any) -> Any:
        if isinstance(value, bool):
            return kind() if value else None
        given = asdict(value) if isinstance(value, kind) else as_mapping(value)
        return kind(**{known_name("key", key, rules(kind)): given[key] for key in given})

    def schema() -> dict[str, Any]:
        fields = {key: rule.schema() for key, rule in rules(kind).items()}
        return {"anyOf": [{"type": "boolean"}, {"type": "object", "properties": fields, "additionalProperties": False}]}

    return Rule(check, schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How points are chosen, and when it is enough."""

    sampler: Sampler = LATER  # grid where the space has one, else tpe
    trials: Positive | None = None  # that are begun, baselines not counted; none: no limit
    wall_clock: Seconds | None = None
    gpu_hours: Annotated[float, number(above=0)] | None = None  # hours that workers were held, times the GPUs of each
    concurrency: Positive | None = None  # trials at a time; none: as many as keep the workers busy
    seed: Annotated[int, whole(0)] = 0
    split: Split = "val"  # what the objectives are measured on
    evaluate_only: bool = False  # report every trial on `split`; choose none, run none on the test split
    include_published: bool = True  # whether the code's and the paper's settings are tried first
    max_failures: Positive | None = 5  # failed trials in a row that stop the sweep; none: never
    patience: Positive | None = None  # finished trials in which hypervolume must grow by 1 %, after as many
    race: Annotated[Race, _switch(Race)] | None = None  # none: every trial is run to its end
    finalists: Annotated[Finalists, _record(Finalists)] = field(default_factory=Finalists)
    margin: Annotated[Mapping[str, float], Rule(_margins, _margin_schema)] = field(default_factory=dict)  # by metric
    floor: Annotated[float, number(above=0)] = DEFAULT_FLOOR  # points of accuracy below zero_shot without marks
    notify: str | None = None  # a command that hears of a new front, of failures and of the end

    def __post_init__(self) -> None:
        check_fields(self, "search")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a trial is run on, and with what."""

    model: str = "tiny"
    data_root: str | None = None
    dataset_file: str | None = None
    datasets: tuple[str, ...] = ()  # names and groups; empty: all of dataset_file, or what there is without one
    limit: Positive | None = None  # images per dataset; none: all, of the embedded ones as many as `evaluate` takes
    seeds: Annotated[tuple[int, ...], list_of(whole(0), least=1)] = (0,)
    on_bad_image: OnBadImage = "fail"
    shards: Positive | None = None  # per dataset and seed; none: by size
    workers: Processes | None = None  # none: as many as the machines hold
    gpus_per_worker: Share | None = None  # none: 1 where there are GPUs, else 0
    cpus_per_worker: Annotated[float, number(least=LEAST)] = 1.0
    threads: Processes | None = None  # of torch, in a worker; none: its CPUs
    loaders: Annotated[int, whole(0, 1024)] | None = None  # processes that read images; none: by device
    compile: bool = False  # torch.compile, for long runs on a GPU
    device: str = "auto"  # auto, cpu or cuda; in the process of `evaluate` also cuda:1 and the like
    cache: str | None = None  # folder of image features
    float32_cache: bool = False  # whether image features are kept in float32 rather than half precision
    reuse_results: bool = True  # results with other sweeps on this machine, beside the features
    attempts: Positive = 3  # per task
    task_timeout: Seconds = 3600.0
    baselines: tuple[Annotated[str, BASELINE], ...] = BASELINES
    columns: tuple[Annotated[str, COLUMN], ...] = ()  # optional ones of predictions that are kept
    plugins: tuple[str, ...] = ()  # that the space needs, by the file's stem
    tracking_uri: str | None = None  # none: an embedded store

    def __post_init__(self) -> None:
        check_fields(self, "work")
        shared = self.gpus_per_worker or 1.0
        expect(shared >= LEAST, f"must be 0 or >= {LEAST}, got {shared:g}", "work.gpus_per_worker")
        if not self.datasets and not self.dataset_file:
            set_field(self, "datasets", ("fine_grained",) if self.data_root else ("tiny",))


def require_plugins(named: Iterable[str], loaded: Iterable[str]) -> None:
    have = set(loaded)
    for index, name in enumerate(named):
        problem = f"plugin {name} is not loaded; give its file with --plugin FILE ({name}.py)"
        expect(name in have, problem, f"work.plugins.{index}")
