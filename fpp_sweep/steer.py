"""Steer a sweep while it runs, or before it goes on: what is asked for is kept in its folder, and done once.

python -m fpp_sweep.steer sweeps/NAME add fpp.gamma1=3 fpp.draws=4    try a point next, one trial more
python -m fpp_sweep.steer sweeps/NAME stop trial-0007                 end a trial after the task that it is at
python -m fpp_sweep.steer sweeps/NAME budget --trials 40 --hours 3    in sum, since it began
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fpp_sweep.cli.command import PLUGIN_HELP, Parser, parser, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import ENDED, SweepInfo
from fpp_sweep.records.steering import budget_in_force
from fpp_sweep.space.params import check_points
from fpp_sweep.space.reading import space_of
from fpp_sweep.space.work import Search
from fpp_sweep.space.yamlfile import parse as parse_yaml
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import printable
from fpp_sweep.sweep.api import last_change

BUDGET = {"trials": "trials", "hours": "wall_clock", "concurrency": "concurrency"}  # flag -> key of `search`


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    folder = SweepFolder.open(args.folder)
    info = folder.info()
    command = folder.ask(args.command, CHECKS[args.command](folder, info, args))
    print(printable(command.words.removesuffix(": waits for a driver")), end=": ")
    if info.state == "running":
        print("its driver takes it up within seconds; where that was killed, --resume does")
    else:
        go_on = info.command or "python -m fpp_sweep.tune"
        named = "" if f"--name {info.name}" in go_on else f" --name {info.name}"
        print(printable(f"{info.name} is {info.state}; to have it done: {go_on}{named} --resume"))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.steer", __doc__ or "")
    options.add_argument("folder", type=Path, metavar="SWEEP", help="its folder, such as sweeps/perturb-20261120")
    commands = options.add_subparsers(dest="command", required=True, parser_class=Parser)
    add = commands.add_parser("add", help="a point")
    add.add_argument("values", nargs="+", metavar="KEY=VALUE", help="of what is searched; what is left out is sampled")
    add.add_argument("--plugin", nargs="+", action="extend", type=Path, default=[], metavar="FILE", help=PLUGIN_HELP)
    stop = commands.add_parser("stop", help="a trial or baseline that has not ended")
    stop.add_argument("trial", metavar="TRIAL", help="such as trial-0007")
    budget = commands.add_parser("budget", help="how much there is to be; `none`: no limit")
    budget.add_argument("--trials", metavar="N", help="in sum, with those that have begun")
    budget.add_argument("--hours", metavar="H", help="in sum, over all drivers")
    budget.add_argument("--concurrency", metavar="N", help="trials at a time")
    return options.parse_args(argv)


def point(folder: SweepFolder, info: SweepInfo, args: argparse.Namespace) -> Mapping[str, Any]:
    """The values, as the space takes them."""
    plugins.load(plugins.read(args.plugin))
    space = space_of(info.space, str(folder.info_file))
    values = {}
    for given in args.values:
        key, equals, value = given.partition("=")
        if not equals:
            raise InputError(f"{given!r}: expected key=value, such as {space.searched()[0].key}=...")
        values[key] = parse_yaml(value, given).plain()
    try:
        return check_points([values], space.searched(), space.start())[0]
    except InputError as error:
        raise InputError(error.problem, error.key.removeprefix("0.")) from None


def trial(folder: SweepFolder, info: SweepInfo, args: argparse.Namespace) -> Mapping[str, Any]:
    state = folder.known_trial(args.trial).state
    if state in ENDED:
        raise InputError(f"{args.trial} is {state}; only a trial that has not ended can be stopped")
    return {"trial": args.trial}


def budget(folder: SweepFolder, info: SweepInfo, args: argparse.Namespace) -> Mapping[str, Any]:
    """What is set, and not below what is spent."""
    given = {flag: parse_yaml(value, f"--{flag}").plain() for flag in BUDGET if (value := getattr(args, flag))}
    values = {flag: None if value == "none" else value for flag, value in given.items()}
    if not values:
        raise InputError("budget: say what with --trials, --hours or --concurrency")
    hours = values.get("hours")
    if isinstance(hours, int | float) and not isinstance(hours, bool):
        values["hours"] = 3600.0 * hours
    plain: dict[str, Any] = {BUDGET[flag]: value for flag, value in values.items()}
    checked = Search(**plain)
    asked: dict[str, Any] = {key: getattr(checked, key) for key in plain}
    known = space_of(info.space, str(folder.info_file)).search
    left = replace(budget_in_force(info, known, folder.commands()), **asked)
    if (left.trials, left.wall_clock, left.gpu_hours) == (None, None, None):
        raise InputError("budget: without trials, hours and GPU-hours the search has no end; give one of them")
    begun = sum(record.kind == "trial" and record.state != "waiting" for record in folder.trials())
    if (asked.get("trials") or begun) < begun:
        raise InputError(f"--trials {asked['trials']}: {begun} have begun already; give no fewer")
    spent = spent_until_now(folder, info)
    if (asked.get("wall_clock") or spent) < spent:
        raise InputError(f"--hours {asked['wall_clock'] / 3600:.3g}: {spent / 3600:.3g} are spent already; give more")
    return asked


def spent_until_now(folder: SweepFolder, info: SweepInfo) -> float:
    """Seconds over all drivers; of one that runs, or was killed, from its lock until it last wrote."""
    lock = folder.path / "lock"
    begun = lock.stat().st_mtime if info.state == "running" and lock.exists() else time.time()
    return info.spent + max(0.0, last_change(folder) - begun)


CHECKS = {"add": point, "stop": trial, "budget": budget}


if __name__ == "__main__":
    run(main)
