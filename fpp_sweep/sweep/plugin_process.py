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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from fpp_sweep.core.models.model_names import EMBEDDED
from fpp_sweep.space.space import Space
from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import PluginFile
from fpp_sweep.sweep.child_process import end_with_parent

REQUEST, ANSWERS, STALLED = "request.pickle", "answers.jsonl", "stalled.txt"  # files in the folder of a process
LOADING = "loading"  # the first step; the others are the rows
START_SECONDS = 600.0  # limit for the time that a process takes to load torch and the model, or the plugins
FAILS = "fails: "  # prefix of the outcome of a row that raises an error


@dataclass(frozen=True, slots=True)
class Request:
    """Rows of plugins to compute in a new process."""

    files: tuple[PluginFile, ...]
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    sampled_space: Space | None  # the space whose sampler is a plugin's
    after_others: bool  # compute other data before
    seconds: float  # time limit of each row
    clock_offset: int = 0  # seconds by which the clock of the process is ahead

    def steps(self) -> list[str]:
        """Return the names of all rows, such as `method mine`."""
        names = [f"metric {name}" for name in self.metrics]
        if self.sampled_space is not None:
            names.append(f"sampler {self.sampled_space.search.sampler}")
        return names + [f"method {name}" for name in self.methods]


def main(folder: Path) -> None:
    """Compute the request of a folder; write a line when a step begins and one with its outcome when it has ended."""
    end_with_parent()
    request: Request = pickle.loads((folder / REQUEST).read_bytes())
    _move_clock(request.clock_offset)
    with (folder / ANSWERS).open("w") as answers, (folder / STALLED).open("w") as stalled:
        with _step(LOADING, START_SECONDS, answers, stalled) as outcome:
            plugins.load(request.files)
            outcome.append("loaded")
        if outcome != ["loaded"]:
            return  # without its rows
        computations = _computations(request)  # loads torch and a model, which takes none of the plugins' time
        for name, compute in computations.items():
            with _step(name, request.seconds, answers, stalled) as outcome:
                outcome.append(compute())


@contextmanager
def _step(name: str, seconds: float, answers: TextIO, stalled: TextIO) -> Iterator[list[str]]:
    """Write the outcome that the block appends to a list, or its error; end the process if the block takes too long."""
    print(json.dumps({"begins": name}), file=answers, flush=True)
    faulthandler.dump_traceback_later(seconds, exit=True, file=stalled)
    outcome: list[str] = []
    try:
        yield outcome
    except (Exception, SystemExit) as error:
        outcome.append(_described(error))
    finally:
        faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"ends": name, "outcome": outcome[0]}), file=answers, flush=True)


def _computations(request: Request) -> dict[str, Callable[[], str]]:
    """Return a function for each step that computes the result of its row in all bits."""
    computations: dict[str, Callable[[], str]] = {}
    after_others = request.after_others
    if request.metrics:
        bits_of_metric = catalogue.code_of("fpp_sweep.core.metric_contract:bits_of_metric")
        for name in request.metrics:
            computations[f"metric {name}"] = partial(bits_of_metric, catalogue.METRICS[name], after_others)
    if request.sampled_space is not None:
        space = request.sampled_space
        bits_of_sampler = catalogue.code_of("fpp_sweep.search.sampler_contract:bits_of_sampler")
        computations[f"sampler {space.search.sampler}"] = partial(bits_of_sampler, space, after_others)
    if request.methods:
        model = catalogue.code_of("fpp_sweep.core.models.loading:load")(EMBEDDED)
        bits_of_method = catalogue.code_of("fpp_sweep.trial.contract:bits_of_method")
        for name in request.methods:
            computations[f"method {name}"] = partial(bits_of_method, model, catalogue.method(name), after_others)
    return computations


def _described(error: BaseException) -> str:
    if isinstance(error, InputError):
        return f"{FAILS}{error}"
    return f"{FAILS}{type(error).__name__}: {error}"


def _move_clock(seconds: int) -> None:
    """Have time.time() and time.time_ns() of this process tell a later time, as in another run of the sweep."""
    tell_time, tell_nanoseconds = time.time, time.time_ns
    time.time = lambda: tell_time() + seconds
    time.time_ns = lambda: tell_nanoseconds() + seconds * 10**9


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # without waiting for threads that a plugin has started
