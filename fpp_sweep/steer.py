"""Steer a sweep while it runs, or before it is resumed. Its driver applies each command once.

python -m fpp_sweep.steer SWEEP add fpp.gamma1=3 fpp.gamma2=0.3    try a point as the next trial
python -m fpp_sweep.steer SWEEP stop trial-0007                   end a trial after its current task
python -m fpp_sweep.steer SWEEP set search.trials=40              ask another space, as --set of `tune` does
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fpp_sweep.cli import Parser, add_flags, find_sweep, parser, run
from fpp_sweep.spec import plugins
from fpp_sweep.spec.messages import printable


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    sweep = find_sweep(args.sweep)
    from fpp_sweep.sweep import command_line  # reads records, which --help does without

    if args.command == "stop":
        text = command_line.stop_trial(sweep, args.trial)
    else:
        plugins.load_plugins(*args.plugin)
        text = command_line.change_space(sweep, args.command, args.values)
    print(printable(text))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.steer", __doc__ or "")
    options.add_argument("sweep", metavar="SWEEP", help="name or folder of a sweep")
    commands = options.add_subparsers(dest="command", required=True, parser_class=Parser)
    add = commands.add_parser("add", help="add a point to try")
    add.add_argument("values", nargs="+", metavar="KEY=VALUE", help="searched settings; omitted ones are sampled")
    add_flags(add, "--plugin")
    stop = commands.add_parser("stop", help="stop a trial or baseline that has not ended")
    stop.add_argument("trial", metavar="TRIAL", help="such as trial-0007")
    change = commands.add_parser("set", help="ask another space: a budget, ranges, objectives, baselines, ...")
    change.add_argument("values", nargs="+", metavar="KEY=VALUE", help="keys of the space; null takes a key out")
    add_flags(change, "--plugin")
    return options.parse_args(argv)


if __name__ == "__main__":
    run(main)
