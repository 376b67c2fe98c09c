"""A process that computes the results of plugins on made-up data, for `plugin_check`.

It stops itself, by a timer that needs no lock of Python's, if a plugin takes too long.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TextIO

from fpp_sweep.core.metric_contract import bits_of_metric
from fpp_sweep.core.models.model_names import EMBEDDED
from fpp_sweep.space.space import Space
from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.errors import readable_message
from fpp_sweep.spec.specs import PluginFile
from fpp_sweep.sweep.child_process import end_with_parent

if TYPE_CHECKING:
    from fpp_sweep.core.models.clip import Clip  # loads torch

# names of files in the folder of a process
REQUEST = "request.pickle"
ANSWERS = "answers.jsonl"  # the course of each step
STALLED = "stalled.txt"  # calls of the step that took too long, in the form of `faulthandler`
LOADING = "loading"  # title of the first step; the title of each other step is that of a row
LOADED = "loaded"  # outcome of the first step if it succeeds
START_SECONDS = 600.0  # limit for the time that a process takes to load torch and the model, or the plugins
FAILS = "fails: "  # prefix of the outcome of a row that raises an error


class PluginRow(NamedTuple):
    """A row of a plugin, by its name in the catalogue."""

    kind: Literal["metric", "sampler", "method"]
    name: str

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Request:
    """Rows of plugins to compute in a new process."""

    files: tuple[PluginFile, ...]
    rows: tuple[PluginRow, ...]
    space: Space
    seconds: float  # time limit of each row
    after_others: bool = False  # compute other data before
    clock_offset: int = 0  # seconds by which the clock of the process is ahead


def main(folder: Path) -> None:
    """Compute the request of a folder; write a line when a step begins and one with its outcome when it has ended."""
    end_with_parent()
    request: Request = pickle.loads((folder / REQUEST).read_bytes())
    _move_clock(request.clock_offset)
    with (folder / ANSWERS).open("w") as answers, (folder / STALLED).open("w") as stalled:
        steps = StepLog(answers, stalled)
        loading = steps.run(LOADING, partial(_load_plugins, request.files), START_SECONDS)
        if loading != LOADED:
            return  # the plugins' rows are missing
        computations = _computations(request)  # loads torch and a model, which takes none of the plugins' time
        for title, compute in computations.items():
            steps.run(title, compute, request.seconds)


def _load_plugins(files: Sequence[PluginFile]) -> str:
    plugins.load(files)
    return LOADED


@dataclass(frozen=True, slots=True)
class StepLog:
    """The files in which the process that checks the plugins finds the course of each step."""

    answers: TextIO
    stalled: TextIO

    def run(self, title: str, compute: Callable[[], str], seconds: float) -> str:
        """Return the outcome of a step, or a text on its error, and write it; end the process after the time limit."""
        print(json.dumps({"begins": title}), file=self.answers, flush=True)
        faulthandler.dump_traceback_later(seconds, exit=True, file=self.stalled)
        try:
            outcome = compute()
        except (Exception, SystemExit) as error:
            outcome = f"{FAILS}{readable_message(error)}"
        finally:
            faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"ends": title, "outcome": outcome}), file=self.answers, flush=True)
        return outcome


def _computations(request: Request) -> dict[str, Callable[[], str]]:
    """Return, by the title of each row, a function that computes the row's result in all bits."""
    return {row.title: _computation(row, request) for row in request.rows}


def _computation(row: PluginRow, request: Request) -> Callable[[], str]:
    match row.kind:
        case "metric":
            return partial(bits_of_metric, catalogue.METRICS[row.name], request.after_others)
        case "sampler":
            from fpp_sweep.search.sampler_contract import bits_of_sampler  # loads Optuna

            return partial(bits_of_sampler, request.space, request.after_others)
        case "method":
            from fpp_sweep.trial.contract import bits_of_method  # loads torch

            return partial(bits_of_method, _embedded_model(), catalogue.method(row.name), request.after_others)


@cache
def _embedded_model() -> Clip:
    from fpp_sweep.core.models.loading import load  # loads torch

    return load(EMBEDDED)


def _move_clock(seconds: int) -> None:
    """Have time.time() and time.time_ns() of this process tell a later time, as in another run of the sweep."""
    tell_time, tell_nanoseconds = time.time, time.time_ns
    time.time = lambda: tell_time() + seconds
    time.time_ns = lambda: tell_nanoseconds() + seconds * 10**9


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # without waiting for threads that a plugin has started
