"""Search FPP's settings: `python -m fpp_sweep.tune --space search_spaces/perturb.yaml`.

Runs a sweep over what the space file asks for (docs/spaces.md): on this machine, or with --address auto on the Ray
cluster that it belongs to. Trials are searched on the validation split; the front and the baselines are then run on the
test split, too. Whatever ends a sweep early, the same command with --resume goes on with it.

    python -m fpp_sweep.tune --space search_spaces/smoke.yaml
    python -m fpp_sweep.tune --space search_spaces/perturb.yaml --model ViT-B-16/openai --data-root DATA \\
        --datasets fine_grained --address auto
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fpp_sweep.cli.command import PLUGIN_HELP, parser, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.space.overrides import add_flags, from_flags
from fpp_sweep.space.reading import load_space, read_config
from fpp_sweep.space.space import Space
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.messages import command_line, note
from fpp_sweep.spec.process import sleep_when_idle
from fpp_sweep.spec.progress import Screen
from fpp_sweep.sweep.api import Options, Sweep
from fpp_sweep.sweep.folders import sweep_folder
from fpp_sweep.sweep.heading import heading
from fpp_sweep.sweep.resume import require_same


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    sleep_when_idle()
    files = plugins.read(args.plugin)
    plugins.load(files)
    space = read_space(args)
    if args.dry_run:
        from fpp_sweep.sweep.estimate import dry_run  # loads torch

        print(dry_run([space], args.plan))
        return
    words = sys.argv[1:] if argv is None else argv
    options = Options(
        root=args.out,
        name=args.name,
        resume=args.resume,
        address=args.address,
        tracking_uri=args.tracking_uri,
        verbose=args.verbose,
        command=command_line("fpp_sweep.tune", words),
        plugins=files,
        finish=tuple(args.finish),
    )
    folder = announced(space, options)
    options = replace(options, name=folder.path.name)
    go_on = [*words, *([] if args.name else ["--name", folder.path.name]), *([] if args.resume else ["--resume"])]
    try:
        from fpp_sweep.sweep.run import run_sweep  # loads numpy, and what else a sweep needs

        run_sweep(space, options)
    except (KeyboardInterrupt, MachineError) as error:
        told, again = "interrupted, and nothing was begun; to begin:", words
        if folder.info_file.is_file():
            told, again = "interrupted; to go on:", go_on
            if isinstance(error, KeyboardInterrupt):  # else the disk may be what failed
                with suppress(KeyboardInterrupt):  # another Ctrl-C skips the summary
                    show_ending(folder)
        print(f"{told}\n    {command_line('fpp_sweep.tune', again)}", file=sys.stderr)
        if isinstance(error, MachineError):
            raise
        sys.exit(130)
    show_ending(folder)
    if folder.info().state != "finished":
        raise SystemExit(1)


def announced(space: Space, options: Options) -> SweepFolder:
    """The sweep's folder, once it is told what begins, if that cannot be refused at once."""
    folder = sweep_folder(space, options)
    known = None
    if options.resume:
        with suppress(InputError):  # what is damaged is mended later
            known = folder.info()
    if known:
        require_same(known, space, options, folder)
    Screen(sys.stderr).draw(heading(folder, space.plain(), space.objectives, space.search.split))
    return folder


def show_ending(folder: SweepFolder) -> None:
    from fpp_sweep.sweep.summary import summary_lines

    print("\n".join(summary_lines(folder, resume=False)))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.tune", __doc__ or "")
    add = options.add_argument
    add("--space", type=Path, required=True, metavar="YAML", help="such as search_spaces/perturb.yaml")
    add("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="any key of the space file")
    add("--config", type=Path, metavar="YAML", help="settings that trials start from, and a first point")
    add("--points-from", type=Path, metavar="SWEEP", help="try the front of another sweep first")
    add_flags(options, "model", "data_root", "dataset_file", "datasets", "limit", "seed", "trials", "wall_clock")
    add_flags(options, "search_split", "workers", "on_bad_image")
    add("--plugin", nargs="+", action="extend", type=Path, default=[], metavar="FILE", help=PLUGIN_HELP)
    add("--address", metavar="ADDRESS", help="of a Ray cluster: auto or HOST:PORT; default: a session of our own")
    add("--tracking-uri", metavar="URI", help="of MLflow; default: sqlite:///mlflow.db here")
    add("--out", type=Path, default=Path("sweeps"), metavar="DIR", help="folder of sweeps; default: sweeps")
    add("--name", metavar="NAME", help="of the sweep; default: the space's and the time")
    add("--resume", action="store_true", help="go on with this space's last sweep, or with that of --name")
    add("--finish", nargs="+", default=[], metavar="TRIAL", help="run trials that lost a race to their end")
    add("--dry-run", action="store_true", help="show resolved configs, tasks and an estimate of the cost; run nothing")
    add("--plan", type=_counts, default=(), metavar="N,N", help="with --dry-run: a table for so many workers, 1,4,16")
    add("--verbose", action="store_true", help="let Ray's workers talk")
    args = options.parse_args(argv)
    if args.finish and not args.resume:
        raise InputError("--finish goes with --resume, and --name where it is not the last sweep")
    if args.plan and not args.dry_run:
        raise InputError("--plan goes with --dry-run")
    return args


def _counts(text: str) -> tuple[int, ...]:
    """
    >>> _counts("1,16")
    (1, 16)
    """
    counts = tuple(int(word) if word.isdecimal() else 0 for word in text.split(","))
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text} are no numbers of workers; say 1,4,16")
    return counts


def read_space(args: argparse.Namespace) -> Space:
    """The space file with everything that the command line says otherwise; later flags win."""
    space = space_asked(args)
    return points_from(space, args.points_from) if args.points_from else space


def space_asked(args: argparse.Namespace) -> Space:
    overrides = [*from_flags(args), *args.set]
    space = load_space(args.space, overrides)
    if args.config is None:
        return space
    given = read_config(args.config)
    searched = {param.key for param in space.searched()}
    settings = {key: value for key, value in given.items() if key not in searched}
    # JSON is YAML; `none` is how a setting says that it has no value, where null would take the key out
    start = [f"base.{key}={'none' if value is None else json.dumps(value)}" for key, value in settings.items()]
    space = load_space(args.space, [*start, *overrides])
    try:
        return first_tried(space, point_of(space, given))
    except InputError as error:
        note(f"{args.config} is not tried first: {error.problem}")
        return space


def point_of(space: Space, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a config says of the settings that are searched."""
    point: dict[str, Any] = {}
    for param in space.searched():
        if param.key in settings and param.exists(point):
            point[param.key] = settings[param.key]
    return point


def first_tried(space: Space, point: Mapping[str, Any]) -> Space:
    """The space with a point before its own."""
    return replace(space, points=(point, *space.points)) if point and point not in space.points else space


def points_from(space: Space, path: Path) -> Space:
    """With the front of another sweep."""
    front = Sweep.open(path).front()
    ours, theirs = {param.key for param in space.searched()}, {key for member in front for key in member.params}
    if strange := sorted(theirs - ours):
        told = f"it searched {', '.join(strange)}, which {space.name} does not"
        raise InputError(f"--points-from {path}: {told}; give a sweep of the same parameters")
    if not front:
        raise InputError(f"--points-from {path}: it has no front yet; give a sweep with a trial that finished")
    for member in reversed(front):
        try:
            space = first_tried(space, dict(member.params))
        except InputError as error:
            where = f"--points-from {path}: {member.name}: {error.key.removeprefix('points.0.')}"
            raise InputError(f"{where}: {error.problem}") from None
    return space


if __name__ == "__main__":
    run(main)
