"""Command lines of `tune`, `evaluate` and `steer`: the space that they ask for, and its run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import ENDED, FINAL, Command, SweepInfo
from fpp_sweep.search.question import asked_space, reassessed, recorded_space, require_no_start, with_command
from fpp_sweep.space.reading import load_space, read_config, space_from, space_of
from fpp_sweep.space.space import Space
from fpp_sweep.space.yamlfile import of_plain
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.messages import command_line, note, printable
from fpp_sweep.sweep.api import Options, Sweep, sweep_folder
from fpp_sweep.sweep.live import print_heading
from fpp_sweep.sweep.plan import check_before_local_start, check_before_ray_start
from fpp_sweep.sweep.show import print_trial
from fpp_sweep.sweep.summary import export_results, print_next_command, resume_command, summary_lines

INTERRUPTED = 130  # exit status, as a shell has it for Ctrl-C
EVALUATION = {  # the keys of a space that only evaluates
    "search": {"split": "test", "include_published": False, "evaluate_only": True},
    "work": {"baselines": []},
}
REPEATED_WORK = (  # keys of `work` that decide what a trial's numbers are
    *("model", "data_root", "dataset_file", "datasets", "limit", "seeds", "threads", "loaders"),
    *("columns", "posthoc"),
)
FLAGS_OF_TRIALS = {  # flags of `evaluate`, by setting
    "method": "--method",
    "prompt": "--prompt",
    "anchor_prompt": "--anchor-prompt",
}


def space_to_tune(path: Path, overrides: Sequence[str], *, config: Path | None = None) -> Space:
    """Return the space of a file, changed by the overrides; `config` has settings that trials start from."""
    return _with_config(partial(load_space, path), overrides, config)


def space_of_sweep(folder: SweepFolder, overrides: Sequence[str], *, config: Path | None = None) -> Space:
    """Return the space that was asked of a sweep's folder last, changed as `space_to_tune` changes that of a file."""
    return _with_config(partial(recorded_space, folder.info().space, str(folder.info_file)), overrides, config)


def _with_config(load: Callable[[Sequence[str]], Space], overrides: Sequence[str], config: Path | None) -> Space:
    """Return a space with a config's settings as its base; settings that are searched become its first point."""
    if config is None:
        return load(overrides)
    settings = read_config(config)
    searched = {param.key for param in load(overrides).searched()}
    base = []
    for key, value in settings.items():
        if key not in searched:
            base.append(f"base.{key}={_as_yaml(value)}")
    space = load([*base, *overrides])
    try:
        return _with_first_point(space, _searched_values(space, settings))
    except InputError as error:
        note(f"{config}: its point is not tried first: {error.problem}")
        return space


def _with_first_point(space: Space, point: dict[str, Any]) -> Space:
    """Return the space with a point before the others, unless it has that point."""
    if not point or point in space.points:
        return space
    return replace(space, points=(point, *space.points))


def _as_yaml(value: Any) -> str:
    """Return a setting as an assignment takes it: `none` says that it has no value, as null would remove the key."""
    if value is None:
        return "none"
    return json.dumps(value)  # JSON is YAML


def _searched_values(space: Space, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's values of the settings that are searched."""
    point: dict[str, Any] = {}
    for param in space.searched():
        if param.key in settings and param.exists(point):
            point[param.key] = settings[param.key]
    return point


def space_to_evaluate(
    overrides: Sequence[str],
    *,
    config: Path | None = None,
    methods: Sequence[str] | None = None,
    prompts: Sequence[str] | None = None,
    anchor_prompt: str | None = None,
) -> Space:
    """Return a space whose trials are all combinations of methods and prompts, on the test split by default.

    Without methods and prompts, they are those of the config; without a config, the plain method and the default one,
    each from the anchor prompt and from a prompt that FPP pretrains.
    """
    _require_flags(overrides)
    settings: Mapping[str, Any] = {}
    if config is not None:
        settings = read_config(config)
    defaults = TrialConfig().replace(settings)
    anchor = anchor_prompt or defaults.anchor_prompt
    if config is None:
        methods = methods or [catalogue.ZERO_SHOT, catalogue.TPT]
        prompts = prompts or [anchor, "fpp"]
    else:
        methods = methods or [defaults.method]
        prompts = prompts or [defaults.prompt]
    base = {key: value for key, value in settings.items() if key not in FLAGS_OF_TRIALS}
    block = {"prompt": list(prompts), "method": list(methods)}
    document = of_plain({**EVALUATION, "base": {**base, "anchor_prompt": anchor}, "grid": [block]}, "evaluate")
    if config is not None:
        document.places["base"] = (str(config), "base")
    document.places["base.anchor_prompt"] = (f"--anchor-prompt {anchor}", "")
    for key, values in block.items():
        for index, value in enumerate(values):
            document.places[f"grid.0.{key}.{index}"] = (f"--{key} {value}", "")
    return space_from(document, "evaluate", overrides)


def recorded_trial(sweep: Path, name: str) -> tuple[Path, list[str]]:
    """Return the file of a trial's settings, and the assignments that evaluate these as the sweep did.

    Model, data, seeds, split and metrics are the sweep's. A trial that failed after the search is evaluated on the
    split that it failed on. Raise InputError if the trial was imported.
    """
    folder = SweepFolder(sweep)
    info, record = folder.info(), folder.known_trial(name)
    if record.is_imported:
        raise InputError(f"--trial {name}: was imported, so it has no settings; evaluate one of the sweep's own trials")
    split = info.search_split
    if record.reason_split not in ("", FINAL):
        split = record.reason_split
    work = dict(info.work_settings)
    if not info.evaluate_only and work.get("threads") is None:
        work["threads"] = max(1, int(work.get("cpus_per_worker", 1)))  # as many as a worker on Ray has
    assignments = [f"search.split={split}", f"objectives={json.dumps(info.space['objectives'])}"]
    for key in REPEATED_WORK:
        if work.get(key) is not None:
            assignments.append(f"work.{key}={json.dumps(work[key])}")
    return folder.trial_file(record.name), assignments


def _require_flags(overrides: Sequence[str]) -> None:
    """Raise InputError for an assignment to a setting that has a flag, since trials differ in it."""
    for assignment in overrides:
        key = assignment.partition("=")[0].strip().removeprefix("base.")
        if key in FLAGS_OF_TRIALS:
            raise InputError(f"--set {assignment}: give {FLAGS_OF_TRIALS[key]} instead")


def options_of(args: argparse.Namespace, command: str, words: Sequence[str]) -> Options:
    """Return what the flags of a command say about the folder, the cluster and MLflow; `words` are what was typed."""
    if args.resume and args.name not in (None, args.resume):
        raise InputError(f"--name {args.name}: --resume {args.resume} names the sweep already; take one out")
    return Options(
        root=args.out,
        name=args.resume or args.name,
        resume=args.resume is not None,
        address=args.address,
        tracking_uri=args.tracking_uri,
        verbose=args.verbose,
        command=command_line(command, words),
    )


def run_command(space: Space, options: Options, *, in_process: bool = False, export: bool = False) -> SweepFolder:
    """Run a space on Ray, or in this process, print how it ended, and return its folder.

    `export` writes results.json at the end. After an interrupt or a failure of the machine, the command that resumes
    the sweep is printed, and this process exits.
    """
    check = check_before_local_start if in_process else check_before_ray_start
    check(space, options)  # before the sweep has a folder and a page is announced
    folder = sweep_folder(space, options)
    options = replace(options, root=folder.path.parent, name=folder.path.name)
    try:
        announce(space, options, folder)
        sweep = _run(space, options, folder, in_process=in_process)
    except MachineError as error:  # no summary is printed: the disk may be what failed
        print(f"error: {printable(error)}", file=sys.stderr)
        print_next_command(folder, options.command, "stopped")
        sys.exit(1)
    except KeyboardInterrupt:
        if folder.has_sweep:
            with suppress(KeyboardInterrupt):  # another Ctrl-C skips the summary
                print("\n".join(summary_lines(folder)))
        print_next_command(folder, options.command, "interrupted")
        sys.exit(INTERRUPTED)
    print("\n".join(summary_lines(folder, mlflow_links=sweep.mlflow_links)))
    if export:
        print(export_results(folder))
    return folder


def announce(space: Space, options: Options, folder: SweepFolder) -> None:
    """Announce the sweep on stderr; raise InputError if it cannot begin or resume."""
    if options.resume:
        space, _ = asked_space(folder, space, options.plugin_digests())
    print_heading(folder, space.plain(), space.objectives, space.search.split)


def _run(space: Space, options: Options, folder: SweepFolder, *, in_process: bool) -> Sweep:
    """Run a space in a folder; what that needs is loaded after the sweep is announced."""
    if in_process:
        from fpp_sweep.sweep.local_run import run_checked_locally  # see above

        return run_checked_locally(space, options, folder, partial(print_trial, space.objectives))
    from fpp_sweep.sweep.start import run_checked  # see above

    return run_checked(space, options, folder)


def print_dry_run(space: Space, options: Options) -> None:
    """Print configs, tasks and cost of a sweep; of one that is resumed, of what it has not measured."""
    from fpp_sweep.sweep.estimate import dry_run  # loads torch

    if not options.resume:
        print(dry_run([space]))
        return
    folder = sweep_folder(space, options)
    space, _ = asked_space(folder, space, options.plugin_digests())
    records = reassessed(folder.trials(), space, run_failed_again=True)
    print(dry_run([space], records, folder.measured_tasks()))


def stop_trial(sweep: Path, name: str) -> str:
    """Ask a sweep to stop a trial, and return what happens next."""
    folder = SweepFolder(sweep)
    record = folder.known_trial(name)
    if record.state in ENDED:
        raise InputError(f"{name} is {record.state}; only a trial that has not ended can be stopped")
    return _what_happens_next(folder, folder.info(), folder.send_command("stop", [record.name]))


def change_space(sweep: Path, kind: Literal["add", "set"], words: Sequence[str]) -> str:
    """Ask a sweep to try a point, or another space with some keys changed; return what happens next."""
    folder = SweepFolder(sweep)
    info = folder.info()
    if info.evaluate_only:
        problem = "was run by `evaluate`, which takes no further points and no other space"
        raise InputError(f"{info.name}: {problem}; call evaluate --resume with other values")
    asked, _ = asked_space(folder, space_of(info.space, str(folder.info_file)), info.plugins)
    changed = with_command(folder, asked, Command(kind=kind, words=words, written=0.0), info.plugins)
    if info.state == "running":
        require_no_start(asked, changed)
    return _what_happens_next(folder, info, folder.send_command(kind, words))


def _what_happens_next(folder: SweepFolder, info: SweepInfo, command: Command) -> str:
    """Return the command in words, and when it is applied: soon, or after the sweep is resumed."""
    if info.state == "running":
        return f"{command.text}: the running sweep applies it within seconds; if it was killed, on --resume"
    return f"{command.text}: {folder.path.name} is {info.state}; to have it applied: {resume_command(folder, info)}"
