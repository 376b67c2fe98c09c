"""The cells of a table: our numbers beside the printed ones, and what can be said of their difference."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord
from fpp_sweep.reproduce.experiments import AVERAGE, STAGES, Column, Experiment, Row, find, made_from
from fpp_sweep.space.reading import space_of
from fpp_sweep.space.yamlfile import of_plain
from fpp_sweep.spec import catalogue, keys
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import write_json
from fpp_sweep.statistics.block_stats import BlockStats
from fpp_sweep.statistics.old_bootstrap import BootstrapSamples, averaged, difference, drawn, needed, single
from fpp_sweep.trial.artifacts import changed, read_sums

PAPERS_MODEL = "ViT-B-16"  # the architecture, and the tag of whose weights the printed numbers are
PAPERS_TAG = "openai"
EUROSAT = "eurosat"  # dominates the printed averages
WITHOUT = f"{AVERAGE} without {EUROSAT}"
DRAWS = 500  # resamples of an interval
SPREAD = 2 * math.sqrt(2)  # of the difference of two numbers that each move by a standard deviation, twice
REMEMBERED = "experiment.json"

Verdict = Literal["agrees", "differs", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A row's number in a column, on one dataset or on average."""

    value: float | None = None
    deviation: float | None = None  # over seeds
    interval: tuple[float, float] | None = None  # 95 %, over the images of the first seed
    printed: float | None = None
    rounding: float = 0.0  # of the printed number
    same_model: bool = True

    @property
    def difference(self) -> float | None:
        if self.value is None or self.printed is None or not self.same_model:
            return None
        return self.value - self.printed

    @property
    def verdict(self) -> Verdict:
        """Whether the difference is more than both numbers move from seed to seed, and the rounding of the printed one.

        >>> Cell(value=64.9, deviation=0.1, printed=65.37, rounding=0.005).verdict
        'differs'
        """
        if self.difference is None or self.deviation is None:
            return ""
        return "agrees" if abs(self.difference) <= SPREAD * self.deviation + self.rounding else "differs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A claim of the text on our own numbers."""

    says: str
    verdict: str
    numbers: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """An experiment with its numbers."""

    experiment: Experiment
    model: str
    same_model: bool
    places: tuple[str, ...]  # datasets, then averages
    cells: Mapping[tuple[str, str, str], Cell]  # by row, column and place
    ran: tuple[str, ...]  # what was run, a sentence each
    judged: tuple[Judged, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)  # row -> why it has no numbers
    # trials that have results, by row and column
    records: Mapping[tuple[str, str], TrialRecord] = field(default_factory=dict)

    @property
    def datasets(self) -> list[str]:
        return [place for place in self.places if not place.startswith(AVERAGE)]

    def record(self, row: Row) -> TrialRecord | None:
        """The row's trial; the first, where columns have trials of their own."""
        found = (self.records.get((row.name, column.name)) for column in self.experiment.columns)
        return next(filter(None, found), None)

    @property
    def rows(self) -> list[Row]:
        """Those that have a number, of ours or of the paper."""
        named = {row for row, _, _ in self.cells} | self.failed.keys()
        return [row for row in self.experiment.rows if row.name in named]

    def of(self, row: Row, column: Column, place: str) -> Cell:
        return self.cells.get((row.name, column.name, place), Cell())


def is_papers_model(model: str) -> bool:
    """Whether the printed numbers are of this model's kind: ViT-B/16 with OpenAI's weights, from the hub or a file.

    >>> [is_papers_model(name) for name in ("ViT-B-16/openai", "ViT-B-16-quickgelu:/data/ViT-B-16.pt", "tiny")]
    [True, True, False]
    """
    name, _, file = model.partition(":")
    architecture, _, tag = name.partition("/")
    plain = architecture.removesuffix("-quickgelu")
    return plain == PAPERS_MODEL and (tag == PAPERS_TAG or (not tag and Path(file).name == f"{PAPERS_MODEL}.pt"))


def table_of(experiment: Experiment, folder: SweepFolder, files: Mapping[str, str], ran: Sequence[str] = ()) -> Table:
    """Read an experiment's numbers from its sweep's folder."""
    info = folder.info()
    space = space_of(info.space, str(folder.info_file))
    records = {record.key: record for record in folder.trials()}
    same = is_papers_model(info.model)
    datasets = list(info.datasets)
    places = tuple(datasets) + tuple(averages(experiment, datasets))
    found: dict[tuple[str, str, str], Cell] = {}
    used: dict[tuple[str, str], TrialRecord] = {}
    failed = {}
    for row in experiment.rows:
        for column in experiment.columns:
            record = None
            if row.set is not None and files.keys() >= set(row.files):
                record = records.get(keys.of_config(space.resolve(experiment.settings(row, column, files))))
            if record is not None and "test" not in record.results:
                failed[row.name] = record.reason or record.state
            elif record is not None:
                used[row.name, column.name] = record
            for place in places:
                cell = _cell(experiment, row, column, place, datasets, record, folder, same_model=same)
                if cell.value is not None or cell.printed is not None:
                    found[row.name, column.name, place] = cell
    table = Table(
        experiment=experiment,
        model=info.model,
        same_model=same,
        places=places,
        cells=found,
        ran=(*ran, *_ran(space.resolve({}).flat(), info, space.work.limit)),
        failed=failed,
        records=used,
    )
    return replace(table, judged=tuple(judge(table, folder)))


def remember(folder: SweepFolder, experiment: Experiment, files: Mapping[str, str], ran: Sequence[str]) -> None:
    """What else than the sweep's records `recalled` needs, beside them."""
    document = {"experiment": experiment.root.plain(), "files": dict(files), "ran": list(ran)}
    write_json(folder.path / REMEMBERED, document)


def recalled(folder: SweepFolder) -> Table:
    """The table of a sweep that was run as an experiment's, as it was run."""
    file = folder.path / REMEMBERED
    try:
        document = json.loads(file.read_text())
        plain, files, ran = (document[key] for key in ("experiment", "files", "ran"))
    except FileNotFoundError:  # its run has not come to its end
        return table_of(find(folder.path.name), folder, {})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{file}: not readable ({error})") from error
    return table_of(made_from(of_plain(plain, str(file)), folder.path.name), folder, files, ran)


def _ran(start: Mapping[str, object], info: SweepInfo, limit: int | None) -> Iterator[str]:
    seeds = ", ".join(str(seed) for seed in info.seeds)
    yield f"model {info.model}, datasets {', '.join(info.datasets)}, seeds {seeds}"
    yield (
        f"{limit} images a dataset at most"
        if limit
        else "all images of the test splits, as far as they are not limited by default"
    )
    settings = ("fpp.gamma1", "fpp.gamma2", "fpp.start", "fpp.detach", "fpp.align_distance", "fpp.steps", "views.count")
    yield ", ".join(f"{key}={start[key]}" for key in (*settings, "views.augmix", "precision"))


def averages(experiment: Experiment, datasets: Sequence[str]) -> dict[str, list[str]]:
    """The datasets of each average."""
    wanted = [name for name in datasets if name in experiment.average] or list(datasets)
    known = {AVERAGE: wanted} if len(wanted) > 1 else {}
    rest = [name for name in wanted if name != EUROSAT]
    if EUROSAT in wanted and len(rest) > 1:
        known[WITHOUT] = rest
    return known


def _cell(
    experiment: Experiment,
    row: Row,
    column: Column,
    place: str,
    datasets: Sequence[str],
    record: TrialRecord | None,
    folder: SweepFolder,
    *,
    same_model: bool,
) -> Cell:
    names = averages(experiment, datasets).get(place, [place])
    printed, rounding = printed_at(experiment, row, column, place)
    value = deviation = interval = None
    result = record.results.get("test") if record else None
    if result is not None and record is not None:
        value, deviation = numbers(result, column, names)
        if column.metric in (catalogue.ACCURACY, catalogue.ECE) and column.of == "mean":
            interval = _interval(folder, record, column.metric, names)
    return Cell(
        value=value, deviation=deviation, interval=interval, printed=printed, rounding=rounding, same_model=same_model
    )


def printed_at(experiment: Experiment, row: Row, column: Column, place: str) -> tuple[float | None, float]:
    """What the paper prints, and half a unit of its last digit; the average without EuroSAT follows from the others."""
    cells: Mapping[str, float | None] = row.printed.get(column.name, {})
    if place == WITHOUT:
        rest = [number for name, number in cells.items() if name not in (AVERAGE, EUROSAT) and number is not None]
        wanted = [name for name in cells if name not in (AVERAGE, EUROSAT)]
        return (math.fsum(rest) / len(rest), _half(rest[0])) if rest and len(rest) == len(wanted) else (None, 0.0)
    number = cells.get(place)
    return number, 0.0 if number is None else _half(number)


def _half(number: float) -> float:
    """Half a unit of a number's last digit.

    >>> _half(23.9), _half(4.13)
    (0.05, 0.005)
    """
    return float(0.5 * 10.0 ** -len(repr(number).partition(".")[2]))


def numbers(result: SplitResult, column: Column, names: Sequence[str]) -> tuple[float | None, float | None]:
    """A column's value over some datasets, and its standard deviation over seeds."""
    if column.metric in STAGES:
        stage = column.metric.partition(".")[2]
        seconds = [result.costs.get(name, {}).get(stage) for name in names]
        known = [value for value in seconds if value is not None]
        return (math.fsum(known) / len(known), None) if len(known) == len(names) else (None, None)
    if any(column.metric not in result.datasets.get(name, {}) for name in names):
        return None, None
    by_seed = [[scores[name][column.metric] for name in names] for scores in result.by_seed.values()]
    if column.of == "deviation":
        if len(by_seed) < 2:
            return None, None
        return statistics.fmean(statistics.stdev(one) for one in zip(*by_seed, strict=True)), None
    value = statistics.fmean(result.datasets[name][column.metric] for name in names)
    return value, statistics.stdev(map(statistics.fmean, by_seed)) if len(by_seed) > 1 else None


def _interval(
    folder: SweepFolder, record: TrialRecord, metric: str, names: Iterable[str]
) -> tuple[float, float] | None:
    parts = {name: _sums(folder, record, name)[:1] for name in names}
    if not all(parts.values()):
        return None
    found = _drawn({name: [sums] for name, sums in parts.items()}, metric)
    interval = single(found, metric, 0, min(sums.total for (sums,) in parts.values()))
    return None if isinstance(interval, str) else (interval.low, interval.high)


def _drawn(sums: Mapping[str, Sequence[Sequence[BlockStats]]], metric: str) -> dict[str, BootstrapSamples]:
    """Of a mean over datasets, by dataset the seeds' sums of each side."""
    return averaged([drawn(name, "test", sides, needed([metric]), DRAWS) for name, sides in sums.items()])


def judge(table: Table, folder: SweepFolder) -> Iterator[Judged]:
    """Each sentence on our numbers.

    Of accuracy and ECE, a difference counts where its interval over the images, which both saw, leaves zero out; of
    other columns, where it is beyond two standard deviations over seeds.
    """
    rows = {row.name: row for row in table.experiment.rows}
    columns = {column.name: column for column in table.experiment.columns}
    for claim in table.experiment.claims:
        column = columns[claim.column]
        alone = claim.where == "every dataset" or (claim.where == AVERAGE and AVERAGE not in table.places)
        gains: list[tuple[float, float]] = []  # how much better, and how much of that may be chance
        for place in table.datasets if alone else [claim.where]:
            names = averages(table.experiment, table.datasets).get(place, [place])
            for other in claim.than:
                cells = [table.of(rows[name], column, place) for name in (claim.row, other)]
                if any(cell.value is None for cell in cells):
                    continue
                sides = [table.records[name, column.name] for name in (claim.row, other)]
                gain, chance = _gain(folder, sides, cells, column, names)
                gains.append((-gain if column.goal == "min" else gain, chance))
        told = ", ".join(f"{gain:+.2f} ± {chance:.2f}".replace(" ± inf", " (one seed)") for gain, chance in gains)
        yield Judged(says=claim.says, verdict=_verdict(gains, claim.kind), numbers=told)


def _gain(
    folder: SweepFolder, sides: Sequence[TrialRecord], cells: Sequence[Cell], column: Column, names: Sequence[str]
) -> tuple[float, float]:
    """How much higher the first is, and how far that reaches to both sides: without end where nobody knows."""
    if column.metric in (catalogue.ACCURACY, catalogue.ECE) and column.of == "mean":
        sums = {name: [_sums(folder, record, name) for record in sides] for name in names}
        if all(map(all, sums.values())):
            gap = difference(_drawn(sums, column.metric), column.metric, 0, 1)
            assert gap is not None
            return gap.value, gap.high - gap.value
    values = [cell.value or 0.0 for cell in cells]
    spread = [math.inf if cell.deviation is None else cell.deviation for cell in cells]
    return values[0] - values[1], 2 * math.hypot(*spread)


def _verdict(gains: Sequence[tuple[float, float]], kind: str) -> str:
    held = sum(gain > chance for gain, chance in gains)
    against = sum(gain < -chance for gain, chance in gains)
    if not gains:
        return "not run"
    if kind == "differs":
        return "differs" if held + against else "not told apart"
    if held == len(gains):
        return "holds"
    verdict = "does not hold" if against else "not told apart"
    return f"{verdict}; holds in {held} of {len(gains)}" if held else verdict


def _sums(folder: SweepFolder, record: TrialRecord, dataset: str) -> list[BlockStats]:
    """Of each seed; empty where the files are gone."""
    path = folder.artifacts(record.name)
    known = _all_sums(path, changed(path / "test"))
    return [sums for (name, _), sums in sorted(known.items(), key=lambda item: item[0]) if name == dataset]


@lru_cache(maxsize=256)  # columns, averages and claims of a table ask for the same files
def _all_sums(path: Path, at: int) -> dict[tuple[str, int], BlockStats]:
    return read_sums(path, "test")
