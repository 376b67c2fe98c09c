"""Search for the best settings: `python -m fpp_sweep.tune --space perturb`.

Runs the sweep of a space file (docs/spaces.md), or of a shipped space, on this machine or, with --address auto, on the
Ray cluster of this machine. Trials are compared on the validation split. Finalists then run again with other seeds, and
with the baselines on the test split. If a sweep is interrupted, --resume NAME continues it.

    python -m fpp_sweep.tune --list-spaces
    python -m fpp_sweep.tune --space perturb --set fpp.gamma2=0.3 search.sampler=random
    python -m fpp_sweep.tune --space search_spaces/perturb.yaml --model ViT-B-16/openai --data-root DATA \\
        --datasets fine_grained --address auto
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from fpp_sweep.cli import RUN_FLAGS, add_flags, flags_in_errors, overrides, parser, run, terminal_width, typed_words
from fpp_sweep.space.reading import list_shipped_spaces
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import user_path

LINE_COLUMNS = 120  # width of the list of spaces on a wider terminal


def main(argv: Sequence[str] | None = None) -> None:
    """Run or resume a sweep; exit with status 1 if no trial of it finished."""
    args = parse(argv)
    if args.list_spaces:
        print(list_shipped_spaces(min(terminal_width(), LINE_COLUMNS)))
        return
    from fpp_sweep.sweep import api, command_line  # load much that --help does without

    plugins.load_plugins(*args.plugin)
    options = command_line.options_of(args, "tune", typed_words(argv))
    with flags_in_errors(args):
        if args.space is None:
            folder = api.resumed_folder(options)
            options = replace(options, root=folder.path.parent, name=folder.path.name)
            space = command_line.space_of_sweep(folder, overrides(args), config=args.config)
        else:
            space = command_line.space_to_tune(args.space, overrides(args), config=args.config)
            options = options.with_store_of(space)
    if args.dry_run:
        command_line.print_dry_run(space, options)
        return
    folder = command_line.run_command(space, options)
    if folder.info().state != "finished":
        raise SystemExit(1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.tune", __doc__ or "", usage="--space YAML [options]")
    space = options.add_argument_group("search space")
    space_help = "a file, such as search_spaces/perturb.yaml, or the name of a shipped space, such as perturb"
    space.add_argument("--space", type=user_path, metavar="YAML", help=space_help)
    space.add_argument("--list-spaces", action="store_true", help="list the shipped spaces with their questions")
    config_help = "settings of all trials; its values of searched settings are the first point"
    space.add_argument("--config", type=user_path, metavar="YAML", help=config_help)
    add_flags(options, "--trials", *RUN_FLAGS)
    resuming = options.add_argument_group("resuming")
    resume_help = "continue this sweep, or the last one; --space or --set ask another space of its trials"
    resuming.add_argument("--resume", nargs="?", const="", metavar="NAME", help=resume_help)
    dry_run = options.add_argument_group("dry run")
    dry_run_help = "show the resolved configs, the tasks and an estimate of the cost; run nothing"
    dry_run.add_argument("--dry-run", action="store_true", help=dry_run_help)
    args = options.parse_args(argv)
    if args.space is None and args.resume is None and not args.list_spaces:
        raise InputError("--space: is missing; give a file or a shipped space, which --list-spaces lists")
    return args


if __name__ == "__main__":
    run(main)
