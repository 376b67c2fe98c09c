"""What a sweep comes to, from its folder: sentences, the table, what failed, and what to do next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from fpp_sweep.records import pareto
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, format_metric, format_values, front_of, values_of
from fpp_sweep.records.records import SweepInfo, TrialRecord, WorkTotals
from fpp_sweep.spec.messages import command_line, plural, printable, runnable
from fpp_sweep.spec.progress import shares
from fpp_sweep.sweep.display import final_table
from fpp_sweep.sweep.repeat import repeat_command, use_command
from fpp_sweep.tracking import to_look
from fpp_sweep.trial.trial import added

FAILURES = 3  # that are told; of more, how many


def ending(folder: SweepFolder) -> Iterator[str]:
    """Lines, for the end of a sweep or for whoever looks at it."""
    from fpp_sweep.report.evidence import evidence_of  # loads numpy

    info, records = folder.info(), folder.trials()
    evidence = evidence_of(folder.artifacts, info, front_of(info, records))
    yield from map(printable, sentences(info, records, judged=bool(evidence.splits)))
    if records:
        yield f"\n{final_table(info, records, evidence)}\n"
    asked = (f"steered     {command.words}" for command in folder.commands())
    work = work_done(info, records)
    yield from map(printable, (*failures(folder, info, records), *asked, *work, *to_open(folder, info)))


def sentences(info: SweepInfo, records: Sequence[TrialRecord], *, judged: bool) -> Iterator[str]:
    """How it ended, and how its trials stand beside the baselines; where that is `judged`, the table says it."""
    states = Counter(record.state for record in records if record.kind == "trial")
    counts = ", ".join(f"{count} {state}" for state, count in states.items()) or "none was begun"
    why = f" ({info.end_reason})" if info.end_reason and info.finished else ""
    yield f"{info.name} is {info.state}{why}; trials: {counts}."
    front = front_of(info, records)
    if front.infeasible and not front.members:
        yield "No trial that finished keeps all constraints: none is on the front."
    if front.members and front.baselines and not judged:
        yield from _beside_baselines(info, front)
    if front.members and info.reference is not None:
        corner = format_values(info.objectives, info.reference)
        if not pareto.hypervolume([values_of(member) for member in front.members], front.goals, info.reference):
            yield f"Hypervolume 0: no trial is better in every objective than the corner it is measured from, {corner}."


def _beside_baselines(info: SweepInfo, front: Front) -> Iterator[str]:
    goals = " and ".join(objective.metric for objective in info.objectives)

    def beats(one: TrialRecord, other: TrialRecord) -> bool:
        return pareto.front([values_of(one), values_of(other)], front.goals) == [0]

    winners = [one.name for one in front.members if all(beats(one, baseline) for baseline in front.baselines)]
    most = f"{', '.join(winners)} beat{'s' * (len(winners) == 1)}" if winners else "No trial beats"
    yield f"{most} every baseline in {goals}, on {info.search_split}."
    for member in front.members:
        if better := [baseline.label for baseline in front.baselines if beats(baseline, member)]:
            marks = ", ".join(front.marks[member.name])
            yield f"{member.name}{f' ({marks})' * bool(marks)} is beaten by {', '.join(better)}."
    for place, objective in enumerate(info.objectives):
        best = max if objective.goal == "max" else min
        first = best(front.compared, key=lambda record: values_of(record)[place])
        if first.kind == "baseline":
            value = format_metric(objective.metric, values_of(first)[place])
            yield f"The best {objective.metric} is that of baseline {first.label}, {value}."


def failures(folder: SweepFolder, info: SweepInfo, records: Sequence[TrialRecord]) -> Iterator[str]:
    """Each with its cause, its traceback, and the command that runs what failed again."""
    failed = [record for record in records if record.state == "failed" or (record.reason and record.details)]
    for record in failed[:FAILURES]:
        yield f"{record.name} failed: {record.reason}"
        yield f"    traceback   {folder.artifacts(record.name) / 'log.txt'}"
        yield f"    repeat      {repeat_command(folder, info, record)}"
    if len(failed) > FAILURES:
        yield f"and {len(failed) - FAILURES} more failed: {runnable(command_line('show', [str(folder.path)]))}"


def work_done(info: SweepInfo, records: Sequence[TrialRecord]) -> Iterator[str]:
    if info.race:
        yield f"race        {info.race}"
    work = info.work
    if work != WorkTotals():
        tasks, results = plural(work.tasks, "task"), plural(work.cached, "cached result")
        loads, lost = plural(work.model_loads, "model load"), plural(work.workers_lost, "worker")
        yield f"work        {tasks} run, {results}, {loads}, {lost} lost"
    if features := features_line(records):
        yield f"features    {features}"


def features_line(records: Sequence[TrialRecord]) -> str:
    """How fast image features were computed for these trials, and what that waited for."""
    cost = added(result.features for record in records for result in record.results.values())
    images = cost.pop("images", 0.0)
    if not images:
        return ""
    rate = images / math.fsum(cost.values())
    return f"of {plural(int(images), 'image')} at {rate:.3g} images/s a worker; time went to {shares(cost)}"


def to_open(folder: SweepFolder, info: SweepInfo) -> Iterator[str]:
    """What there is to look at, and the command that uses the best config."""
    yield f"sweep       {folder.path}"
    if (page := folder.report / "sweep.html").is_file():
        yield f"page        {page.as_uri()}"
    if (knee := folder.report / "best" / "knee.yaml").is_file():
        yield f"use it      {use_command(info, knee)}"
    if not info.tracking_uri:
        yield f"MLflow      {runnable(command_line('sync', [str(folder.path)]))}"
        return
    for head, line in zip(("MLflow", ""), to_look(folder, info.tracking_uri), strict=False):
        yield f"{head:12}{line}"
