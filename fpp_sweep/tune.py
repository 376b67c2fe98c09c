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
from collections.abc import Sequence
from pathlib import Path

from fpp_sweep import plugins
from fpp_sweep.cli import PLUGIN_HELP, command_line, parser, run, sleep_when_idle
from fpp_sweep.errors import InputError
from fpp_sweep.space.overrides import add_flags, from_flags
from fpp_sweep.space.reading import load_space, read_config
from fpp_sweep.space.space import Space
from fpp_sweep.sweep.display import final_table
from fpp_sweep.sweep.handle import InterruptedSweep, Options
from fpp_sweep.tracking import parent_url, ui_command


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    sleep_when_idle()
    files = plugins.read(args.plugin)
    plugins.load(files)
    space = read_space(args)
    if args.dry_run:
        from fpp_sweep.sweep.estimate import dry_run  # loads torch

        print(dry_run([space]))
        return
    from fpp_sweep.sweep.run import run_sweep  # loads numpy, and what else a sweep needs

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
    try:
        sweep = run_sweep(space, options)
    except InterruptedSweep:
        again = words if args.resume else [*words, "--resume"]
        print(f"interrupted; to go on:\n    {command_line('fpp_sweep.tune', again)}", file=sys.stderr)
        sys.exit(130)
    info = sweep.info
    if info.tags.get("ended"):
        print(f"ended: {info.tags['ended']}", file=sys.stderr)
    if info.tags.get("race"):
        print(f"race: {info.tags['race']}", file=sys.stderr)
    print(final_table(info, sweep.trials(), sweep.evidence()))
    tags = info.tags
    work = f"{tags['work_tasks']} tasks run, {tags['work_at_hand']} results at hand"
    print(f"\nwork: {work}, {tags['work_model_loads']} model loads, {tags['work_workers_lost']} workers lost")
    print(f"sweep: {sweep.folder.path}   best configs: {sweep.folder.report / 'best'}")
    url = parent_url(sweep.folder, info.tracking_uri)
    print(f"MLflow: {url}" if url else f"MLflow UI: {ui_command(info.tracking_uri)}")
    if info.state != "finished":
        raise SystemExit(1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.tune", __doc__ or "")
    add = options.add_argument
    add("--space", type=Path, required=True, metavar="YAML", help="such as search_spaces/perturb.yaml")
    add("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="any key of the space file")
    add("--config", type=Path, metavar="YAML", help="settings that trials start from, such as a sweep's best/knee.yaml")
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
    add("--verbose", action="store_true", help="let Ray's workers talk")
    args = options.parse_args(argv)
    if args.finish and not args.resume:
        raise InputError("--finish goes with --resume, and --name where it is not the last sweep")
    return args


def read_space(args: argparse.Namespace) -> Space:
    """The space file with everything that the command line says otherwise; later flags win."""
    overrides = [*from_flags(args), *args.set]
    loaded = [file.stem for file in args.plugin]
    space = load_space(args.space, overrides, loaded)
    if args.config is None:
        return space
    searched = {param.key for param in space.searched()}
    settings = {key: value for key, value in read_config(args.config).items() if key not in searched}
    # JSON is YAML; `none` is how a setting says that it has no value, where null would take the key out
    start = [f"base.{key}={'none' if value is None else json.dumps(value)}" for key, value in settings.items()]
    return load_space(args.space, [*start, *overrides], loaded)


if __name__ == "__main__":
    run(main)
