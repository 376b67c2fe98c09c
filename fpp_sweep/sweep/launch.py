"""Run a sweep as a command does: announce it, run or resume it, and print how it ended."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.search.question import asked_space
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.messages import command_line, printable
from fpp_sweep.sweep.api import Options, Sweep
from fpp_sweep.sweep.folders import reserved_folder
from fpp_sweep.sweep.live import print_heading
from fpp_sweep.sweep.resume_command import print_next_command
from fpp_sweep.sweep.show import print_trial

INTERRUPTED = 130  # exit status, as a shell has it for Ctrl-C


def options_of(args: argparse.Namespace) -> Options:
    """Return what the flags of a command line say about the folder, the cluster and MLflow."""
    if args.resume and args.name not in (None, args.resume):
        raise InputError(f"--name {args.name}: --resume {args.resume} names the sweep already; take one out")
    return Options(
        root=args.out,
        name=args.resume or args.name,
        resume=args.resume is not None,
        address=args.address,
        tracking_uri=args.tracking_uri,
        verbose=args.verbose,
    )


def launch(
    space: Space,
    options: Options,
    *,
    command: str,
    words: Sequence[str],
    in_process: bool = False,
    export: bool = False,
) -> SweepFolder:
    """Run a space on Ray, or in this process, and return its folder.

    `command` and `words` are what the user typed; `export` writes results.json at the end. After an interrupt or
    a failure of the machine, the command that resumes the sweep is printed, and this process exits.
    """
    options = replace(options, command=command_line(command, words))
    check_before_launch(space, options, in_process=in_process)
    with reserved_folder(space, options) as folder:
        options = replace(options, root=folder.path.parent, name=folder.path.name)
        try:
            announce(space, options, folder)
            run = run_in_process if in_process else run_on_ray
            sweep = run(space, options, folder)
        except MachineError as error:  # no summary is printed: the disk may be what failed
            print(f"error: {printable(error)}", file=sys.stderr)
            print_next_command(folder, command, words, "stopped")
            sys.exit(1)
        except KeyboardInterrupt:
            if folder.info_file.is_file():
                with suppress(KeyboardInterrupt):  # another Ctrl-C skips the summary
                    print_summary(folder)
            print_next_command(folder, command, words, "interrupted")
            sys.exit(INTERRUPTED)
    print_summary(folder, export=export, mlflow_links=sweep.mlflow_links)
    return folder


def announce(space: Space, options: Options, folder: SweepFolder) -> None:
    """Announce the sweep on stderr; raise InputError if it cannot begin or resume."""
    if options.resume:
        space, _ = asked_space(folder, space, options.plugin_digests())
    print_heading(folder, space.plain(), space.objectives, space.search.split)


def print_dry_run(spaces: Sequence[Space], worker_counts: Sequence[int] = ()) -> None:
    from fpp_sweep.sweep.estimate import dry_run  # loads torch

    print(dry_run(spaces, worker_counts))


def check_before_launch(space: Space, options: Options, *, in_process: bool) -> None:
    """Raise InputError for what cannot be used, before the sweep has a folder and a page is announced."""
    from fpp_sweep.sweep import preflight  # start-up time of --help

    if in_process:
        preflight.check_before_local_start(space, options)
    else:
        preflight.check_before_ray_start(space, options)


def run_on_ray(space: Space, options: Options, folder: SweepFolder) -> Sweep:
    from fpp_sweep.sweep.run import run_checked  # loads Ray and numpy, after the sweep is announced

    return run_checked(space, options, folder)


def run_in_process(space: Space, options: Options, folder: SweepFolder) -> Sweep:
    from fpp_sweep.sweep.local_run import run_checked_locally  # loads numpy, after the sweep is announced

    return run_checked_locally(space, options, folder, partial(print_trial, space.objectives))


def print_summary(folder: SweepFolder, *, export: bool = False, mlflow_links: Sequence[str] = ()) -> None:
    from fpp_sweep.sweep import summary  # loads numpy, which the sweep is announced without

    print("\n".join(summary.summary_lines(folder, mlflow_links=mlflow_links)))
    if export:
        print(summary.export_results(folder))
