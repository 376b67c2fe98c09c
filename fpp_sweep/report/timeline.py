"""How the sweep went: what each worker did when, what it cost and what is to come."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from fpp_sweep.records.front import is_number
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.html import Plot
from fpp_sweep.report.plots import BLUE, GREY, LEGEND, MARGIN, RED, text
from fpp_sweep.space.rules import as_mapping
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.progress import duration

_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (.+), config (\w+): (.*)")
_GAP = 2.0  # seconds between two tasks of a config that are drawn as one
_COLOURS = {"trial": BLUE, "baseline": RED, "pretraining": "#228833", "other": GREY}


class Span(NamedTuple):
    """What a worker did without a pause for one config."""

    begin: float  # seconds since 1970
    end: float
    key: str  # of the config
    pretraining: bool


def spans(log: Path) -> list[Span]:
    """From a worker's log; a task that has no end is not in it."""
    begun: dict[tuple[str, str], float] = {}
    made: list[Span] = []
    for line in log.read_text("utf-8", "replace").splitlines():
        if not (found := _LINE.match(line)):
            continue
        time, what, key, told = found.groups()
        with suppress(ValueError):  # no time: the line is spoiled
            at = datetime.fromisoformat(f"{time}+00:00").timestamp()
            if told == "begins":
                begun[what, key] = at
            elif (what, key) in begun:
                new = Span(begun.pop((what, key)), at, key, "pretraining" in what)
                goes_on = made and made[-1][2:] == new[2:] and new.begin - made[-1].end <= _GAP
                made.append(new._replace(begin=made.pop().begin) if goes_on else new)
    return made


def timeline(logs: Path, records: Sequence[TrialRecord]) -> tuple[Plot, str]:
    """A row for each worker, and how long they had nothing to do."""
    workers = {path.stem: found for path in sorted(logs.glob("*.log")) if path.is_file() and (found := spans(path))}
    if not workers:
        return Plot("timeline", instead="No worker has ended a task yet."), ""
    names = {record.key: record for record in records}
    kinds: dict[str, list[tuple[str, Span]]] = {kind: [] for kind in _COLOURS}
    for worker, found in workers.items():
        for span in found:
            known = names[span.key].kind if span.key in names else "other"
            kinds["pretraining" if span.pretraining else known].append((worker, span))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": kind,
            "y": [worker for worker, _ in rows],
            "base": [round(1000 * span.begin) for _, span in rows],
            "x": [round(1000 * max(span.end - span.begin, 0.5)) for _, span in rows],
            "text": [text(names[span.key].name if span.key in names else span.key) for _, span in rows],
            "customdata": [names[span.key].name if span.key in names else "" for _, span in rows],
            "textposition": "none",
            "hovertemplate": "%{text}<extra>" + kind + "</extra>",
            "marker": {"color": _COLOURS[kind]},
        }
        for kind, rows in kinds.items()
        if rows
    ]
    layout = {
        "barmode": "overlay",
        "height": 110 + 24 * len(workers),
        "margin": {**MARGIN, "l": 110},
        "legend": LEGEND,
        "xaxis": {"type": "date"},
        "yaxis": {"type": "category", "autorange": "reversed"},
    }
    says = f"what each of {len(workers)} workers did when"
    return Plot("timeline", traces, layout, least_width=560, says=says), idle(workers)


def idle(workers: Mapping[str, Sequence[Span]]) -> str:
    """
    >>> idle({"a": [Span(0, 40, "", False), Span(60, 100, "", False)]})
    '1 worker, with a task for 80 % of the time between its first and its last.'
    """
    busy = sum(span.end - span.begin for found in workers.values() for span in found)
    there = sum(found[-1].end - found[0].begin for found in workers.values()) or 1.0
    whose = "its first and its last" if len(workers) == 1 else "their first and their last"
    return f"{plural(len(workers), 'worker')}, with a task for {100 * busy / there:.0f} % of the time between {whose}."


def costs(info: SweepInfo, records: Sequence[TrialRecord]) -> Iterator[str]:
    """What was spent, and how much more it will be at this rate."""
    ended = [record for record in records if record.finished is not None and record.state != "interrupted"]
    trials = [record for record in ended if record.kind == "trial"]
    seconds = sum(record.held + sum(result.device_seconds for result in record.results.values()) for record in ended)
    last = info.finished or max((record.finished or 0.0 for record in ended), default=info.created)
    took = f", in {duration(last - info.created)}"
    yield f"So far {seconds / 3600:.2f} device hours for {plural(len(ended), 'trial')}, baselines among them{took}."
    search = as_mapping(info.space.get("search", {}))
    budgets = [f"{key} {search[key]}" for key in ("trials", "wall_clock", "gpu_hours") if search.get(key) is not None]
    total = search.get("trials")
    if info.finished is None and trials and is_number(total):
        left = max(0, total - len(trials))
        share = left / len(trials)
        yield (
            f"To go: {left} of {total} trials, about {share * seconds / 3600:.2f} device hours and "
            f"{duration(share * (last - info.created))} at this rate."
        )
    if budgets:
        yield f"Budget: {', '.join(budgets)}{f'; ended: {info.end_reason}' if info.end_reason else ''}."
