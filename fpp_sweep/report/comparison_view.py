"""Document of a comparison of sweeps: their common front, tests of their best trials, costs and settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fpp_sweep.records.front import values_of
from fpp_sweep.records.texts import format_metric, format_setting, format_values, setting_text
from fpp_sweep.report.best_trials import best_trials_table, best_trials_verdict
from fpp_sweep.report.comparison import ComparedSweep, SweepComparison, identity_of
from fpp_sweep.report.document import Document, Section, Text, paragraphs
from fpp_sweep.report.formatting import counts_text
from fpp_sweep.report.front_table import front_table
from fpp_sweep.report.table import Cell, Column, Row, Table, cells_of, columns_of
from fpp_sweep.report.text_layout import cut
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import dotted
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.progress import duration
from fpp_sweep.statistics.attainment import Attainment

HYPERVOLUME_SHARES = (0.5, 0.9, 0.99)  # shares of the union's hypervolume
N_ATTAINMENT_ROWS = 5
SETTING_LENGTH = 40  # characters
PROVENANCE = ("model_digest", "device", "git_commit", "fpp_sweep", "torch", "plugins")  # compared beside the spaces


def sweep_comparison_document(comparison: SweepComparison, targets: Sequence[float]) -> Document:
    """Return the tables of a comparison; `targets` are values of the objectives whose cost is asked for."""
    sections = [_union_section(comparison)]
    if comparison.notes:
        sections.append(Section("Notes on what is compared", paragraphs(comparison.notes)))
    sections.append(Section("The sweeps' best trials against each other", [best_trials_table(comparison)]))
    attainment = _attainment_table(comparison)
    if attainment.rows:
        sections.append(Section("Attainment", [attainment]))
    sections.append(Section("Cost", [_cost_table(comparison, targets)]))
    sections.append(Section("Settings that differ", [_settings_table(comparison)]))
    return Document(comparison.info.name, sections)


# --- the union and its best trials --------------------------------------------------------------------


def _union_section(comparison: SweepComparison) -> Section:
    info, front = comparison.info, comparison.statistics.front
    members = {identity_of(member) for member in front.members}
    shares = []
    for sweep in comparison.sweeps:
        trials = {identity_of(trial) for trial in sweep.front.trials}  # a trial may be in several sweeps
        shares.append(f"{len(members & trials)} of {sweep.label}")
    images = counts_text(comparison.images.counts)
    finished = plural(len(front.finished), "finished trial")
    summary = f"{len(front.members)} of {finished}: {', '.join(shares)}; images: {images}"
    table = front_table(info, front, comparison.statistics, settings=False)
    title = f"Union front of {info.name}, by {info.goals} on {info.search_split}"
    return Section(title, [Text(best_trials_verdict(comparison), "lead"), table, Text(summary)])


# --- attainment and cost ------------------------------------------------------------------------------


def _attainment_table(comparison: SweepComparison) -> Table:
    """Return what each sweep's front reaches in the second objective, at positions along the first."""
    attainments: dict[str, Attainment] = {}
    for sweep in comparison.sweeps:
        if sweep.attainment is not None:
            attainments[sweep.label] = sweep.attainment
    if not attainments:
        return Table()
    x, y = (objective.metric for objective in comparison.info.objectives)
    positions = next(iter(attainments.values())).positions
    columns = [Column(x)]
    for label in attainments:
        columns.append(Column(f"{y} of {label}"))
    rows = []
    for row in range(1, N_ATTAINMENT_ROWS + 1):
        index = row * (len(positions) - 1) // (N_ATTAINMENT_ROWS + 1)  # even steps, without the two ends
        cells = [Cell(format_metric(x, float(positions[index])))]
        for attainment in attainments.values():
            cells.append(_attainment_cell(y, attainment, index))
        rows.append(Row(cells))
    note = f"reached in half of the resamples [in 10 %, in 90 % of them] at that {x} or better"
    return Table(columns=columns, rows=rows, notes=[note])


def _attainment_cell(metric: str, attainment: Attainment, index: int) -> Cell:
    texts = []
    for values in (attainment.median, attainment.best, attainment.worst):
        value = float(values[index])
        texts.append(format_metric(metric, value) if math.isfinite(value) else "-")
    median, best, worst = texts
    return Cell(median, interval=f"[{best}, {worst}]")


def _cost_table(comparison: SweepComparison, targets: Sequence[float]) -> Table:
    """Return the worker time until a front is good enough: in hypervolume, or in each objective."""
    objectives = comparison.info.objectives
    best_volume = 0.0
    if comparison.statistics.front.hypervolume:
        _, best_volume = comparison.statistics.front.hypervolume[-1]
    columns = [Column("sweep", is_text=True), *columns_of(["trials", "worker time", "hypervolume"])]
    if targets:
        columns.append(Column(format_values(objectives, targets)))
    else:
        columns += columns_of(f"{share:.0%}" for share in HYPERVOLUME_SHARES)
    rows = []
    for sweep in comparison.sweeps:
        worker_time = duration(sweep.loaded.seconds_until(math.inf))
        n_trials = str(sweep.loaded.n_trials_until(math.inf))
        texts = [sweep.label, n_trials, worker_time, f"{max(sweep.volumes, default=0.0):.4g}"]
        if targets:
            reached = [_reaches(objectives, values_of(trial), targets) for trial in sweep.front.trials]
            texts.append(_cost_until(sweep, reached))
        else:
            for share in HYPERVOLUME_SHARES:
                reached = [0 < share * best_volume <= volume for volume in sweep.volumes]
                texts.append(_cost_until(sweep, reached))
        rows.append(Row(cells_of(texts)))
    has_volume = best_volume > 0 or bool(targets)
    return Table(columns=columns, rows=rows, notes=_cost_notes(comparison, targets, has_volume=has_volume))


def _cost_notes(comparison: SweepComparison, targets: Sequence[float], *, has_volume: bool) -> list[str]:
    goal = "the first trial as good as that" if targets else "that share of the union's hypervolume"
    notes = [f"worker time until {goal}; by values as measured, on the shared images"]
    if not has_volume:
        notes.append(
            "no trial is better in every objective than the hypervolume's reference point; give --target VALUES"
        )
    from_cache = []
    devices = set()
    for sweep in comparison.sweeps:
        devices.add(sweep.loaded.info.device)
        if sweep.loaded.info.work.cached > 0:
            from_cache.append(sweep.label)
    if from_cache:
        notes.append(f"cached results cost nothing: {', '.join(from_cache)}")
    if len(devices) > 1:
        notes.append("the sweeps ran on different devices: their times are not comparable")
    return notes


def _reaches(objectives: Sequence[Objective], values: Sequence[float], targets: Sequence[float]) -> bool:
    for objective, value, target in zip(objectives, values, targets, strict=True):
        if catalogue.sign(objective.goal) * (value - target) < 0:
            return False
    return True


def _cost_until(sweep: ComparedSweep, reached: Sequence[bool]) -> str:
    if True not in reached:
        return "never"
    index = reached.index(True)
    n_trials = sweep.loaded.n_trials_until(sweep.front.trials[index].finished or 0.0)
    return f"{duration(sweep.seconds[index])}, {plural(n_trials, 'trial')}"


# --- settings -----------------------------------------------------------------------------------------


def _settings_table(comparison: SweepComparison) -> Table:
    """Return the keys of the spaces and of the provenance in which the sweeps differ."""
    settings = {}
    keys: dict[str, None] = {}
    for sweep in comparison.sweeps:
        settings[sweep.label] = _settings_of(sweep)
        keys.update(dict.fromkeys(settings[sweep.label]))
    rows = []
    for key in keys:
        texts = [values.get(key, "-") for values in settings.values()]
        if len(set(texts)) > 1:
            rows.append([key, *texts])
    columns = range(len(settings) + 1)
    notes = [] if rows else ["none"]
    return Table.of_strings(["setting", *settings], rows, notes=notes, text_columns=columns)


def _settings_of(sweep: ComparedSweep) -> Mapping[str, str]:
    info = sweep.loaded.info
    settings = {}
    for key, value in dotted(dict(info.space)):
        if key not in ("question", "name"):
            name = key.removeprefix("params.").rpartition(".")[0]  # of a range's end
            settings[key] = cut(setting_text(name, value), SETTING_LENGTH)
    for name, text in info.provenance().items():
        if name in PROVENANCE:
            settings[name] = cut(format_setting(text), SETTING_LENGTH)
    return settings
