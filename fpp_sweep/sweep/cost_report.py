"""The lines of a dry run: configs, tasks, worker time, and how long the sweep takes with several workers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fpp_sweep.records.records import trial_name
from fpp_sweep.records.texts import format_setting
from fpp_sweep.space.space import Space
from fpp_sweep.spec.config import TrialConfig, relevant
from fpp_sweep.spec.messages import plural
from fpp_sweep.sweep.costs import Costs, Range
from fpp_sweep.sweep.expected import ExpectedSweep

WIDTH = 110  # columns
OVERHEAD = 24.0  # seconds, on two cores, before the first task and after the last: libraries, Ray, model and report
TRIALS_SHOWN = 8
MIN_CORE_SHARE = 0.9  # a process that had a core for less of the time was measured on a busy machine


def config_lines(space: Space, configs: Mapping[str, TrialConfig]) -> Iterator[str]:
    """Yield the settings that configs share, and the other settings of the first few."""
    flat = {name: relevant(config.flat()) for name, config in configs.items()}
    shared = _shared_settings(list(flat.values()))
    configs_text = plural(len(configs), "config")
    yield f"sweep {space.name}: {configs_text}, {space.search.sampler}, on {space.work.model}"
    if shared:
        yield _filled(f"the same in all configs that read them: {_settings_text(shared)}", indent="", hanging=4)
    listed = {trial_name(number): point for number, point in enumerate(space.queue())}
    searched = space.searched()
    n_shown = len(space.baselines()) + min(len(listed), TRIALS_SHOWN) + 1  # one more, as an example of a sampled trial
    shown = list(flat)[:n_shown]
    for name in shown:
        own_settings = {key: value for key, value in flat[name].items() if key not in shared}
        text = f"{name}: {_settings_text(own_settings)}"
        if name in listed and listed[name].is_partial(searched):
            text += " (what its point leaves out is drawn at random here)"
        elif name.startswith("trial") and name not in listed:
            text += " (drawn at random here)"
        yield _filled(text, indent="  ", hanging=6)
    if len(flat) > len(shown):
        yield f"  ... and {len(flat) - len(shown)} more"


def _shared_settings(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings that several configs read, and that have one value in all of these."""
    values: dict[str, list[Any]] = {}
    for settings in configs:
        for key, value in settings.items():
            values.setdefault(key, []).append(value)
    shared = {}
    for key, column in values.items():
        if len(column) > 1 and len({str(value) for value in column}) == 1:
            shared[key] = column[0]
    return shared


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={format_setting(value, 4)}" for key, value in settings.items())


def _filled(text: str, *, indent: str, hanging: int) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=" " * hanging, break_on_hyphens=False)


def cost_lines(costs: Costs, workers: int, *, device: str) -> Iterator[str]:
    """Yield the number of tasks, the time of one worker, and the time with several workers."""
    evaluations = costs.evaluations
    images = sum(task.stop - task.start for task in evaluations)
    shared = costs.requested_evaluations() - len(evaluations)
    more = f" ({shared} more are shared)" if shared else ""
    pretrainings = len(costs.tasks) - len(evaluations)
    yield f"tasks: {pretrainings} pretrainings, {len(evaluations)} evaluations of shards{more}, {images} images"
    parts = [
        f"pretraining {format_seconds(costs.pretraining)}",
        f"adaptation {format_seconds(costs.adaptation)}",
        f"image features {format_seconds(costs.features)}",
    ]
    yield f"worker time, measured here ({device}): {', '.join(parts)} (features once, less where cached)"
    total = total_time(costs, workers)
    yield (
        f"estimate: {format_seconds(costs.work)} of {device} time, {format_range(total)} with "
        f"{plural(workers, 'worker')} like this one"
    )
    if costs.core_share < MIN_CORE_SHARE:
        yield (
            f"note: other work took {1 - costs.core_share:.0%} of a core while this was measured; the lower number of "
            "the estimate is for a machine without other work"
        )


def budget_lines(sweep: ExpectedSweep, costs: Costs, workers: int) -> Iterator[str]:
    budget = sweep.space.search.wall_clock
    if budget is not None and budget < total_time(costs, workers).high:
        yield f"the budget of {format_seconds(budget)} may end it earlier"


def total_time(costs: Costs, workers: int) -> Range:
    """Return how long the sweeps take with several workers, with their start and end."""
    total = Range(OVERHEAD, OVERHEAD)
    for time in costs.phase_times(workers):
        total += time
    return total


def worker_table(costs: Costs, worker_counts: Sequence[int], *, view_bytes: int) -> Iterator[str]:
    """Yield the time with several numbers of workers, and the share of it in which a worker is idle.

    After the search come the final stage and the test split.
    """
    yield f"image features: {costs.views * view_bytes / 1e6:,.1f} MB in each cache that computes them all"
    yield f"{'workers':>9}{'search':>20}{'after it':>20}{'all':>20}{'idle':>7}"
    for workers in worker_counts:
        search, rest = Range(0.0, 0.0), Range(0.0, 0.0)
        for phase, time in zip(costs.phases, costs.phase_times(workers), strict=True):
            if phase.is_search:
                search += time
            else:
                rest += time
        total = total_time(costs, workers)
        times = "".join(f"{format_range(time):>20}" for time in (search, rest, total))
        idle = 1 - costs.work / (workers * total.high)
        yield f"{workers:>9}{times}{idle:>7.0%}"


def final_stage_lines(sweep: ExpectedSweep, costs: Costs) -> Iterator[str]:
    """Yield what the finalists and the test split cost."""
    finalists = sweep.space.search.finalists
    if sweep.has_final_stage:
        seconds = format_seconds(costs.seconds_after_search(sweep))
        count = plural(len(sweep.finalists()), "finalist")
        yield f"final stage: {count} with {finalists.seeds} seeds, and test: {seconds} of this"


def format_range(time: Range) -> str:
    """
    >>> format_range(Range(60.0, 62.0)), format_range(Range(61.0, 400.0)), format_range(Range(100.0, 290.0))
    ('60 to 62 s', '61 s to 6.7 min', '1.7 to 4.8 min')
    """
    low, high = format_seconds(time.low), format_seconds(time.high)
    if low == high:
        return low
    number, unit = low.split()
    if unit == high.split()[1]:
        return f"{number} to {high}"
    return f"{low} to {high}"


def format_seconds(seconds: float) -> str:
    """
    >>> [format_seconds(seconds) for seconds in (89.4, 90, 5399, 5400)]
    ['89 s', '1.5 min', '90.0 min', '1.5 h']
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
