"""Settings of the search and of the work: sampler, budget, model, datasets and workers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.files import user_path
from fpp_sweep.spec.validation import (
    COMPUTED_DEFAULT,
    MAX_NUMBER,
    Distinct,
    DistinctAndSome,
    as_mapping,
    at_key,
    checked,
    known_name,
    part,
    require,
    set_field,
    shown,
)

BASELINES = (*catalogue.COMPARED, *catalogue.PUBLISHED)
DEFAULT_FLOOR = 5.0  # points of accuracy below zero-shot, beyond which a trial is not on the front
EMBEDDED_GATE = 0.4  # `search.gate` of the embedded model (studies/gate.md)
MIN_SHARE = 0.01  # smallest share of a CPU or GPU; a machine's cores are hundreds of these
NO_MAP = "none"  # in `work.posthoc`: the method's own probabilities
MAPS = [NO_MAP, *catalogue.POSTHOC]
COLUMNS = [*catalogue.COLUMNS, *catalogue.CONFORMAL]
MAX_PROCESSES = 1024  # or threads; more is a slip that stops a machine
MAX_INTEGER = 2**32 - 1  # NumPy takes no larger seed
MAX_SECONDS = 1e9  # 30 years; Python waits 9.2e9 s at most

# ------------------------------------------------------------ types of fields

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION_PART = r"[0-9]+(?:\.[0-9]+)?[smhdw]"
_DEVICE = r"(auto|cpu|cuda(:[0-9]+)?)"


def to_seconds(value: Any) -> Any:
    """Return words such as 90s, 5m, 1h30m, 2d or 4w as seconds; anything but words stays as it is."""
    if not isinstance(value, str):
        return value
    wanted = "must be a duration such as 90s, 5m or 1h30m"
    require(re.fullmatch(f"(?:{_DURATION_PART})+", value), f"{wanted} ({shown(value)})")
    seconds = 0.0
    for time in re.findall(_DURATION_PART, value):
        seconds += float(time[:-1]) * _UNITS[time[-1]]
    return seconds


def _check_device(value: Any) -> Any:
    is_device = isinstance(value, str) and re.fullmatch(_DEVICE, value)
    require(is_device, f"must be auto, cpu, cuda, or a numbered GPU such as cuda:1 ({shown(value)})")
    return value


def check_baseline(value: Any) -> str:
    """Return the name of a baseline; raise InputError for another name."""
    return known_name("baseline", value, baseline_names(catalogue.METHODS), baseline_names(catalogue.listed_methods()))


def _check_margins(value: Any) -> Any:
    for name in as_mapping(value):
        with at_key(name):
            check_metric(name)
    return value


def _check_sampler(value: Any) -> Any:
    names = ", ".join(catalogue.BUILT_IN_SAMPLERS)
    require(isinstance(value, str), f"must be one of {names} ({shown(value)})")
    catalogue.require_sampler(value)
    return value


def baseline_names(methods: Collection[str]) -> list[str]:
    """Return the methods and the published settings."""
    return list(dict.fromkeys([*methods, *BASELINES]))


def _seconds_schema() -> dict[str, Any]:
    pattern = f"^({_DURATION_PART})+$"
    return {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": pattern}]}


def _to_none(value: Any) -> Any:
    """Return the word `none` as no value: null takes a key out, which then has its default."""
    if value == "none":
        return None
    return value


def _to_zero(value: Any) -> Any:
    """Return `false`, no gate, as 0."""
    if value is False:
        return 0.0
    return value


def _max_failures_schema() -> dict[str, Any]:
    return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_INTEGER}, {"enum": ["none", None]}]}


def _expand_home(path: str) -> str:
    return str(user_path(path))


Sampler = Annotated[str, BeforeValidator(_check_sampler), WithJsonSchema({"enum": list(catalogue.BUILT_IN_SAMPLERS)})]
Split = Literal["train", "val", "test"]
Text = Annotated[str, Field(pattern=r"\S")]
UserPath = Annotated[Text, AfterValidator(_expand_home)]
Positive = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
MaxFailures = Annotated[Positive | None, BeforeValidator(_to_none), WithJsonSchema(_max_failures_schema())]
Seed = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Processes = Annotated[int, Field(ge=1, le=MAX_PROCESSES)]
NotNegative = Annotated[float, Field(ge=0, le=MAX_NUMBER)]
GATE_SCHEMA = {"anyOf": [{"type": "number", "minimum": 0}, {"enum": [False, None]}]}
Gate = Annotated[NotNegative | None, BeforeValidator(_to_zero), WithJsonSchema(GATE_SCHEMA)]
Above0 = Annotated[float, Field(gt=0, le=MAX_NUMBER)]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS), BeforeValidator(to_seconds), WithJsonSchema(_seconds_schema())]
Device = Annotated[str, BeforeValidator(_check_device), WithJsonSchema({"type": "string", "pattern": f"^{_DEVICE}$"})]
BASELINE_SCHEMA = {"enum": baseline_names(catalogue.METHODS)}
BaselineName = Annotated[Text, WithJsonSchema(BASELINE_SCHEMA)]
Baseline = Annotated[str, BeforeValidator(check_baseline), WithJsonSchema(BASELINE_SCHEMA)]
_check_map = partial(known_name, "post-hoc map", names=MAPS)
Posthoc = Annotated[str, BeforeValidator(_check_map), WithJsonSchema({"enum": MAPS})]
_check_column = partial(known_name, "column", names=COLUMNS)
Column = Annotated[str, BeforeValidator(_check_column), WithJsonSchema({"enum": COLUMNS})]

# ------------------------------------------------------------ names of metrics


def check_metric(value: Any) -> catalogue.MetricRow:
    """Return the row of a metric, or of a metric of one dataset such as `ece/dtd`; raise InputError for others."""
    require(isinstance(value, str), f"must be the name of a metric ({shown(value)})")
    row = catalogue.metric(value)
    _, slash, dataset = value.partition("/")
    if slash:
        require(
            "@" not in dataset, f"a post-hoc map stands before the dataset, such as ece@isotonic/dtd ({shown(value)})"
        )
        require(row.of_dataset, f"{row.name} is a metric of a whole trial, not of a dataset ({shown(value)})")
        require(dataset.strip(), f"a dataset is missing after '/' ({shown(value)})")
    if "@" in value:
        _check_posthoc(value, row)
    return row


def _check_posthoc(value: str, row: catalogue.MetricRow) -> None:
    """Check a metric that is measured after a post-hoc map, such as `ece@temperature_val`."""
    posthoc = catalogue.parts_of(value).posthoc
    require(posthoc, f"a post-hoc map is missing after '@' ({shown(value)})")
    is_changed = row.of_dataset and not row.columns and row.name not in catalogue.ACCURACIES
    require(is_changed, f"no post-hoc map changes {row.name}; write {row.name} ({shown(value)})")
    is_bound = catalogue.POSTHOC[posthoc].fitted_on == "the measured labels"
    require(not is_bound, f"{posthoc} is fitted on the labels that it is measured on; take another map")


def _metric_schema() -> dict[str, Any]:
    of_dataset, of_trial = [], []
    for row in catalogue.METRICS.values():
        if row.of_dataset:
            of_dataset.append(row.name)
        else:
            of_trial.append(row.name)
    maps = "|".join(catalogue.POSTHOC)
    return {"type": "string", "pattern": rf"^(({'|'.join(of_dataset)})(@({maps}))?(/.+)?|{'|'.join(of_trial)})$"}


MetricName = Annotated[Text, WithJsonSchema(_metric_schema())]

# ------------------------------------------------------------ search


@checked
class Finalists:
    """The final stage: trials that run again after the search, with more seeds and fresh images."""

    count: Positive = 6  # trials at most
    seeds: Annotated[int, Field(ge=1, le=100)] = 3  # number of fresh pretraining seeds; 1: no final stage
    images: Positive | None = None  # of each dataset, fresh and on the test split; none: as many as the search


@checked
class Search:
    """The choice of points, and when there are enough."""

    sampler: Sampler = COMPUTED_DEFAULT  # auto; the space replaces it by the sampler that it stands for
    trials: Positive | None = None  # trials that start, without baselines; none: no limit
    wall_clock: Seconds | None = None
    concurrency: Positive | None = None  # trials at a time; none: as many as keep the workers busy
    seed: Seed = 0
    split: Split = "val"  # the objectives are measured on it
    evaluate_only: bool = False  # report every trial on `split`; choose none, run none on the test split
    include_published: bool = True  # True: the code's and the paper's settings are tried first
    max_failures: MaxFailures = 5  # failed trials in a row that stop the sweep; none: never
    finalists: Annotated[Finalists, part(Finalists)] = field(default_factory=Finalists)
    # by metric, or metric of a dataset: a loss that does not count
    margin: Annotated[Mapping[str, NotNegative], BeforeValidator(_check_margins)] = field(default_factory=dict)
    floor: Above0 = DEFAULT_FLOOR  # points of accuracy that a trial may be below zero_shot
    gate: Gate = None  # largest drift of a pretraining; none: by model; false: no gate


# ------------------------------------------------------------ work


@checked
class Work:
    """The model, the data and the machines that trials run on."""

    model: Text = "tiny"
    data_root: UserPath | None = None
    dataset_file: UserPath | None = None
    datasets: Distinct[Text] = ()  # names and groups; empty: all of dataset_file, or by data_root
    limit: Positive | None = None  # images per dataset; none: all, of the embedded datasets EMBEDDED_LIMIT
    seeds: DistinctAndSome[Seed] = (0,)
    shards: Positive | None = None  # per dataset and seed; none: by size
    device: Device = "auto"  # auto: a GPU if there is one
    workers: Processes | None = None  # none: as many as the machines hold
    gpus_per_worker: NotNegative | None = None  # none: 1 if there are GPUs, else 0
    cpus_per_worker: Annotated[float, Field(ge=MIN_SHARE, le=MAX_PROCESSES)] = 1.0
    threads: Processes | None = None  # torch's threads in a worker; none: one for each CPU
    loaders: Annotated[int, Field(ge=0, le=MAX_PROCESSES)] | None = None  # processes that read images; none: by device
    cuda_graphs: bool = False  # capture a step of pretraining as a CUDA graph
    cache: UserPath | None = None  # folder of image features and finished tasks
    float32_cache: bool = False  # keep image features in float32 rather than half precision
    reuse_results: bool = True  # use results of other sweeps on this machine, and keep them for others
    attempts: Positive = 3  # per task
    task_timeout: Seconds = 3600.0
    baselines: Distinct[Baseline] = BASELINES
    columns: Distinct[Column] = ()  # optional columns of the predictions that are kept
    # maps of calibration after the fact; the method's own probabilities, `none`, are always measured
    posthoc: Distinct[Posthoc] = ()
    tracking_uri: Text | None = None  # none: that of MLFLOW_TRACKING_URI, or else an embedded store

    def __post_init__(self) -> None:
        maps = list(self.posthoc)
        if NO_MAP in maps:
            maps.remove(NO_MAP)
        set_field(self, "posthoc", tuple(maps))
        with at_key("gpus_per_worker"):
            set_field(self, "gpus_per_worker", self._gpus())
        if not self.datasets and not self.dataset_file:
            set_field(self, "datasets", self._default_datasets())

    def _gpus(self) -> float | None:
        """Return the GPUs of each worker, which the device must allow."""
        gpus = self.gpus_per_worker
        if gpus:
            require(gpus >= MIN_SHARE, f"must be 0 or >= {MIN_SHARE} ({gpus})")
        if self.device == "cpu":
            require(not gpus, f"must be 0 where work.device is cpu ({gpus})")
            return 0.0
        if self.device.startswith("cuda"):
            require(gpus != 0, f"must not be 0 where work.device is {self.device}")
        return gpus

    def _default_datasets(self) -> tuple[str, ...]:
        if self.data_root:
            return ("fine_grained",)
        return ("tiny",)


# ------------------------------------------------------------ seeds of the stages after the search


class LaterSeeds(NamedTuple):
    """The seeds of each stage after the search; none where a stage does not have its own."""

    final: tuple[int, ...] = ()
    test: tuple[int, ...] = ()


def later_seeds(search: Search, work: Work) -> LaterSeeds:
    """Return seeds that no earlier stage had.

    Finalists are chosen by their luck with the seeds of the search, and finalists for the test split by their luck with
    those of the final stage. Without a final stage (`search.finalists.seeds: 1`, or `search.evaluate_only`) the test
    split has the seeds of the search.
    """
    count = search.finalists.seeds
    if count == 1 or search.evaluate_only:
        return LaterSeeds()
    searched = work.seeds
    final = fresh_seeds(searched, count)
    if search.split == "test":
        return LaterSeeds(final)
    return LaterSeeds(final, fresh_seeds([*searched, *final], count))


def fresh_seeds(used: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the first seeds that are not used yet.

    >>> fresh_seeds([0], 3), fresh_seeds([1, 5], 2)
    ((1, 2, 3), (0, 2))
    """
    seeds: list[int] = []
    candidate = 0
    while len(seeds) < count:
        if candidate not in used:
            seeds.append(candidate)
        candidate += 1
    return tuple(seeds)
