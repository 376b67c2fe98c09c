"""A space as a question that is asked of a folder of measured trials.

The folder fixes what decides measured numbers: model, data, seeds, views and code. All else may change while a sweep is
stopped (`tune --resume`) or runs (`steer set`). Trials that the new space holds are observations of its sampler. Other
trials stay in tables and on the front, with a mark.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import measured_value
from fpp_sweep.records.records import (
    FINAL,
    GATE,
    Command,
    Question,
    Settings,
    SplitResult,
    SweepInfo,
    TrialRecord,
    space_changes,
)
from fpp_sweep.space.objectives import Constraint, metrics_of
from fpp_sweep.space.params import check_point
from fpp_sweep.space.reading import space_from, space_of
from fpp_sweep.space.space import Space
from fpp_sweep.space.yamlfile import of_plain
from fpp_sweep.space.yamlfile import parse as parse_yaml
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import ENGINE_NAME, config_key

# keys, and beginnings of keys, that decide the numbers of measured trials
FIXED = (
    "search.split",
    "search.evaluate_only",
    "work.model",
    "work.dataset_file",
    "work.datasets",
    "work.limit",
    "work.seeds",
)
# keys, and beginnings of keys, that only a start of the workers can take over
OF_WORKERS = (
    "work.attempts",
    "work.cache",
    "work.cpus_per_worker",
    "work.cuda_graphs",
    "work.data_root",
    "work.device",
    "work.float32_cache",
    "work.gpus_per_worker",
    "work.loaders",
    "work.reuse_results",
    "work.task_timeout",
    "work.threads",
    "work.tracking_uri",
    "work.workers",
)
TAKEN_OVER = "taken over"  # an answer to a command
# keys of `search` that a running driver may take over at any time: its plans do not depend on them
TAKEN_AT_ONCE = ("question", "points", "search.")


def asked_space(folder: SweepFolder, space: Space, plugins: Mapping[str, str]) -> tuple[Space, list[str]]:
    """Return a space with the waiting commands of `steer`, and the answers to all commands.

    `plugins` has the digests of the plugins that are loaded. Raise InputError if the folder cannot answer the space.
    """
    require_askable(folder, space, plugins)
    answers = list(folder.info().answers)
    for index, command in unanswered(folder.commands(), answers):
        if command.kind != "stop":  # the searcher stops trials
            try:
                space = with_command(folder, space, command, plugins)
                answers = with_answer(answers, index, TAKEN_OVER)
            except InputError as error:
                answers = with_answer(answers, index, f"refused: {error}")
    return space, answers


def unanswered(commands: Sequence[Command], answers: Sequence[str]) -> list[tuple[int, Command]]:
    """Return the commands that wait, with their index."""
    waiting = []
    for index, command in enumerate(commands):
        if index >= len(answers) or not answers[index]:
            waiting.append((index, command))
    return waiting


def count_answered(commands: Sequence[Command], answers: Sequence[str]) -> int:
    """Return how many commands come before the first that waits."""
    waiting = [index for index, _ in unanswered(commands, answers)]
    return min(waiting, default=len(commands))


def with_answer(answers: Sequence[str], index: int, answer: str) -> list[str]:
    """Return the answers with one more; commands before it that wait have an empty one.

    >>> with_answer(["taken over"], 2, "stopped")
    ['taken over', '', 'stopped']
    """
    longer = [*answers, *[""] * (index + 1 - len(answers))]
    longer[index] = answer
    return longer


def require_askable(
    folder: SweepFolder, space: Space, plugins: Mapping[str, str], fixed_keys: tuple[str, ...] = FIXED
) -> None:
    """Raise InputError if a space, or this process, differs in what decides the numbers of a folder's trials.

    A metric may also need more of the predictions than is stored of measured trials.
    """
    info = folder.info()
    fixed = []
    if info.engine != ENGINE_NAME:
        fixed.append(f"engine: {info.engine or 'unknown'} -> {ENGINE_NAME}")
    for name, digest in info.plugins.items():
        if plugins.get(name) != digest:
            fixed.append(f"plugin {name}: {digest} -> {plugins.get(name, 'none')}")
    fixed += [change for change in space_changes(info.space, space.plain()) if change.startswith(fixed_keys)]
    before, after = space_of(info.space, info.name).start().flat(), space.start().flat()
    fixed += [change for change in space_changes(before, after) if change.startswith("views.")]
    if fixed:
        problem = f"its trials were measured with another value ({fixed[0]})"
        raise InputError(f"{info.name} cannot be resumed: {problem}; keep it, or begin another sweep with --name")
    more = _more_columns(info, space) - catalogue.CONFORMAL.keys()
    if more and any(record.results for record in folder.trials()):
        problem = f"{', '.join(sorted(more))}: is not stored with the predictions of its trials"
        raise InputError(f"{info.name}: {problem}; leave out the metrics that need it, or begin another sweep")


def _more_columns(info: SweepInfo, space: Space) -> set[str]:
    return set(space.columns()) - set(space_of(info.space, info.name).columns())


def asked_now(info: SweepInfo, space: Space) -> dict[str, Any]:
    """Return the fields of a sweep's record that change when another space is asked."""
    plain = space.plain()
    changes: dict[str, Any] = {"space": plain, "objectives": space.objectives}
    if plain != info.space:
        before = Question(asked=info.asked or info.created, space=info.space)
        changes |= {"asked": time.time(), "earlier": [*info.earlier, before]}
    if info.objectives != space.objectives:
        changes["reference"] = None
    return changes


# ------------------------------------------------------------ commands


def with_command(folder: SweepFolder, space: Space, command: Command, plugins: Mapping[str, str]) -> Space:
    """Return the space that a command of `steer` asks for; raise InputError if the folder cannot answer it."""
    if command.kind == "set":
        asked = recorded_space(space.plain(), "steer set", command.words)
        require_askable(folder, asked, plugins)
        return asked
    point = check_point(_assigned_values(command.words), space.searched(), space.start())
    if point in space.points:
        raise InputError(f"{command.text}: is a point of the sweep already")
    search = space.search
    if search.trials is not None:
        search = replace(search, trials=search.trials + 1)
    return replace(space, points=(*space.points, point), search=search)


def recorded_space(plain: Settings, where: str, overrides: Sequence[str]) -> Space:
    """Return a recorded space with changes; the trials of a grid are as many as its points unless they are limited."""
    document = dict(plain)
    recorded = space_of(plain, where)
    if recorded.search.sampler == "grid" and recorded.search.trials == len(recorded.queue()):
        document["search"] = {key: value for key, value in document["search"].items() if key != "trials"}
    return space_from(of_plain(document, where), where, overrides)


def _assigned_values(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of `KEY=VALUE` words."""
    values = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"{word!r}: expected key=value, such as fpp.gamma1=3")
        if key in values:
            raise InputError("comes twice; take one out", key)
        values[key] = parse_yaml(value, word).value
    return values


def require_no_start(before: Space, after: Space) -> None:
    """Raise InputError for a change that a running driver cannot take over, since its workers have started."""
    for change in space_changes(before.plain(), after.plain()):
        if change.startswith(OF_WORKERS):
            raise InputError(f"{change}: only a start takes it over; stop the sweep, then `tune --resume --set`")


def is_taken_at_once(before: Space, after: Space) -> bool:
    """Return True if a running driver may take a space over between two trials, with its plans and workers."""
    if _judged_by(before) != _judged_by(after):
        return False
    return all(change.startswith(TAKEN_AT_ONCE) for change in space_changes(before.plain(), after.plain()))


def _judged_by(space: Space) -> tuple[object, ...]:
    """Return the settings of the search that the processes of trials have, too."""
    return space.search.finalists, space.search.floor, space.gate()


# ------------------------------------------------------------ records as the answer to a question


def drop_outdated_results(folder: SweepFolder, before: Settings, space: Space) -> None:
    """Take results out of the records that the space has measured otherwise; their tasks are cached.

    Those are results of the final stage and the test split with other seeds or images, and all results that the space
    asks for if a post-hoc map or a conformal set is added.
    """
    old = space_of(before, folder.path.name)
    former, finalists = old.search.finalists, space.search.finalists
    outdated: set[str] = set()
    # with a method that keeps a state the final stage has the images of the search
    if (former.seeds, former.images, old.has_state) != (finalists.seeds, finalists.images, space.has_state):
        outdated = {FINAL, "test"} - {space.search.split}
    has_more = set(space.work.posthoc) - set(old.work.posthoc) or set(space.columns()) - set(old.columns())
    if not outdated and not has_more:
        return
    records = folder.trials()
    outside = {record.name for record in reassessed(records, space) if record.outside}
    for record in records:
        if record.is_imported or not record.results:
            continue
        if has_more and record.name not in outside:
            folder.write_trial(replace(record, state="waiting", results={}, values=None, constraints={}))
        elif not outdated.isdisjoint(record.results):
            kept = {split: result for split, result in record.results.items() if split not in outdated}
            folder.write_trial(replace(record, results=kept))


def reassess(folder: SweepFolder, space: Space, *, run_failed_again: bool = False) -> list[TrialRecord]:
    """Write all records as a space has them, and return them."""
    before = folder.trials()
    records = reassessed(before, space, run_failed_again=run_failed_again)
    for old, new in zip(before, records, strict=True):
        if new != old:
            folder.write_trial(new)
    return records


def reassessed(records: Sequence[TrialRecord], space: Space, *, run_failed_again: bool = False) -> list[TrialRecord]:
    """Return records as a space has them: their values, constraints, and whether it holds them."""
    results = results_of_baselines(records, space.search.split)
    listed = {}
    if space.search.sampler == "grid":
        for config, point in space.points_by_config().items():
            listed[config_key(config)] = point.values
    answers = []
    for record in records:
        if record.kind == "baseline":
            outside = record.label not in space.baselines() and not record.is_imported
            located = replace(record, outside=outside)
        else:
            located = _with_point(record, space, listed)
        changed = _with_answer(located, space, results)
        if run_failed_again and changed.kind == "trial" and changed.can_run_again and not changed.outside:
            changed = replace(changed, state="waiting", finished=None)
        answers.append(changed)
    return answers


def _with_point(record: TrialRecord, space: Space, listed: Mapping[str, Mapping[str, Any]]) -> TrialRecord:
    """Return the record of a trial with its values of the searched settings; `listed` are points by config's key."""
    point = listed.get(record.key)
    if point is None and (space.search.sampler != "grid" or record.origin != "grid"):
        point = space.point_of(record.config)
    if point is None:
        return replace(record, outside=True)
    return replace(record, outside=False, params=dict(point))


def _with_answer(record: TrialRecord, space: Space, baselines: Mapping[str, SplitResult]) -> TrialRecord:
    """Return a record as the space has it: a collapsed trial may pass another gate, a metric may lack its numbers."""
    if record.state == "collapsed":
        constraints = gate_violation(space.gate(), record.drift)
        if max(constraints.values(), default=0.0) <= 0:
            return replace(record, state="waiting", constraints={})
        return replace(record, constraints=constraints)
    if record.state != "complete" or space.search.split not in record.results:
        return record
    try:
        return with_values(record, space, baselines)
    except (InputError, FloatingPointError) as error:
        if record.is_imported or record.outside:  # it gets no such metric, so that tables leave it out
            return replace(record, values=None)
        return replace(record, state="failed", reason=str(error), reason_split=space.search.split)


def results_of_baselines(records: Sequence[TrialRecord], split: str) -> dict[str, SplitResult]:
    """Return the results on a split of the baselines among records, by label, without those that have none."""
    results = {}
    for record in records:
        if record.kind == "baseline" and split in record.results:
            results[record.label] = record.results[split]
    return results


def with_values(record: TrialRecord, space: Space, baselines: Mapping[str, SplitResult]) -> TrialRecord:
    """Return a record with its values of the objectives, and the constraints that its results break or keep.

    Raise InputError or FloatingPointError for a metric without a number.
    """
    result = record.results[space.search.split]
    values = [measured_value(result, metric) for metric in metrics_of(space.objectives)]
    constraints = {}
    if record.kind == "trial":
        constraints = _violations(space.constraints_and_floor(), result, baselines)
        constraints |= gate_violation(space.gate(), record.drift)
    return replace(record, values=values, constraints=constraints)


def gate_violation(gate: float | None, drift: float | None) -> dict[str, float]:
    """Return by how much a drift exceeds the gate, as a constraint; without a gate there is none."""
    if gate is None:
        return {}
    return {GATE: (drift or 0.0) - gate}


def _violations(
    constraints: Sequence[Constraint], result: SplitResult, baselines: Mapping[str, SplitResult]
) -> dict[str, float]:
    """Return by how much each constraint is broken, by name; a constraint that holds has a value of at most 0.

    A constraint that is relative to a baseline without a result is left out.
    """
    values = {}
    for constraint in constraints:
        reference = None
        if constraint.baseline is not None:
            if constraint.baseline not in baselines:
                continue
            reference = measured_value(baselines[constraint.baseline], constraint.metric)
        values[constraint.name] = constraint.violation(measured_value(result, constraint.metric), reference)
    return values
