"""Run a space to its front, or resume its sweep: checks, Ray and workers, then the driver."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.space.reading import space_of
from fpp_sweep.space.space import Space
from fpp_sweep.spec import plugins
from fpp_sweep.spec.messages import note, stage
from fpp_sweep.spec.process import let_sigterm_interrupt, set_thread_defaults, terminable
from fpp_sweep.sweep.api import Options, Sweep, sweep_folder
from fpp_sweep.sweep.plan import check_before_ray_start
from fpp_sweep.sweep.sweep_record import begin, errors_for_command, removing_refused, start_of
from fpp_sweep.sweep.worker_pool import Workers, sweep_workers
from fpp_sweep.workers.session import LostSession


def run_sweep(space: Space, options: Options | None = None, workers: Workers | None = None) -> Sweep:
    """Run a space to its end, or resume its sweep, and return the sweep.

    Without `workers` the sweep starts its own, and resumes itself from its folder if their Ray session is lost. Ctrl-C
    and SIGTERM raise InterruptedSweep after the folder has been put in order; the sweep can be resumed then.

    >>> from fpp_sweep import load_space
    >>> sweep = run_sweep(load_space("perturb"), Options(name="first"))  # doctest: +SKIP
    >>> [record.name for record in sweep.front()]  # doctest: +SKIP
    ['trial-0002', 'trial-0000']
    """
    options = (options or Options()).with_store_of(space)
    plugins.load(options.plugins)
    if workers is None:
        check_before_ray_start(space, options)
    return run_checked(space, options, sweep_folder(space, options), workers)


def run_checked(space: Space, options: Options, folder: SweepFolder, workers: Workers | None = None) -> Sweep:
    """Run or resume a sweep in a folder, as `run_sweep` does, after the checks that need no worker."""
    set_thread_defaults()
    if options.verbose:
        os.environ["MLFLOW_LOGGING_LEVEL"] = "INFO"
    with folder.locked(), terminable(), errors_for_command(folder):
        while True:
            try:
                links = run_once(space, options, folder, workers)
                return Sweep(folder, links)
            except LostSession as error:
                if workers is not None or not options.resumes_left:
                    raise
                note(f"{error}; the sweep resumes itself")
                info = folder.info()
                space = space_of(info.space, folder.path.name)
                resumes_left = options.resumes_left - 1
                options = replace(options, resume=True, resumes_left=resumes_left, tracking_uri=info.tracking_uri)
                let_sigterm_interrupt()  # again, after the one with which the driver has interrupted itself


def run_once(space: Space, options: Options, folder: SweepFolder, workers: Workers | None) -> tuple[str, ...]:
    """Run or resume a sweep in one Ray session, and return its links to MLflow; raise LostSession if Ray is lost."""
    with ExitStack() as stack:
        with removing_refused(folder, options):
            start = start_of(space, options, folder)
            begin(start)  # from here on a new sweep can be resumed
            tasks, uri = folder.tasks, start.tracking_uri
            ready = stack.enter_context(sweep_workers(start.space, options, tasks, uri, workers))
            stage("loading Ray Tune and Optuna")
            from fpp_sweep.sweep.driver import SweepDriver, open_sweep  # load Ray, after its environment is set

            context = open_sweep(start, ready)
            driver = SweepDriver(start.record, ready, context, options)
        driver.run()
    return tuple(driver.mlflow.links)
