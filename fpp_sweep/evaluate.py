"""Evaluate methods and prompts: `python -m fpp_sweep.evaluate`.

Every combination of --method and --prompt is a trial of a sweep without a search, on the test split. Without arguments:
zero-shot and TPT, each from "a photo of a" and from a prompt that FPP pretrains, on the embedded small CLIP and its
datasets. Trials run in this process, one after the other; with --workers or --address they run on Ray.

    python -m fpp_sweep.evaluate --model ViT-B-16/openai --data-root DATA --datasets fine_grained --seed 0 1 2
    python -m fpp_sweep.evaluate --config sweeps/NAME/report/best/knee.yaml --set search.split=val
    python -m fpp_sweep.evaluate --trial sweeps/NAME/trial-0007
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from fpp_sweep.cli import RUN_FLAGS, add_flags, find_sweep, flags_in_errors, overrides, parser, run, typed_words
from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.files import user_path


def main(argv: Sequence[str] | None = None) -> None:
    """Run the trials and print their tables; exit with status 1 if a trial failed."""
    args = parse(argv)
    from fpp_sweep.sweep import api, command_line  # load much that --help does without

    plugins.load_plugins(*args.plugin)
    options = command_line.options_of(args, "evaluate", typed_words(argv))
    config = args.config
    recorded: list[str] = []
    if args.trial is not None:
        config, recorded = command_line.recorded_trial(find_sweep(str(args.trial.parent)), args.trial.name)
    names_trials = bool(config or args.method or args.prompt or args.anchor_prompt)
    with flags_in_errors(args):
        if options.resume and not names_trials:
            folder = api.resumed_folder(options, evaluations=True)
            options = replace(options, root=folder.path.parent, name=folder.path.name)
            space = command_line.space_of_sweep(folder, overrides(args))
        else:
            space = command_line.space_to_evaluate(
                [*recorded, *overrides(args)],
                config=config,
                methods=args.method,
                prompts=args.prompt,
                anchor_prompt=args.anchor_prompt,
            )
            options = options.with_store_of(space)
    in_process = args.address is None and space.work.workers is None
    folder = command_line.run_command(space, options, in_process=in_process, export=True)
    if any(record.state == "failed" for record in folder.trials()):
        raise SystemExit(1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.evaluate", __doc__ or "", usage="[--method NAME ...] [--prompt PROMPT ...] [options]")
    trials = options.add_argument_group("trials")
    default = f"{catalogue.ZERO_SHOT} {catalogue.TPT}, or that of --config"
    methods = f"{', '.join(catalogue.listed_methods())}; more: docs/methods.md; default: {default}"
    trials.add_argument("--method", nargs="+", action="extend", metavar="NAME", help=methods)
    prompts = "fpp, words, or a prompt file of ours, of CoOp or of MaPLe; default: the anchor prompt and fpp"
    trials.add_argument("--prompt", nargs="+", action="extend", metavar="PROMPT", help=prompts)
    trials.add_argument("--anchor-prompt", metavar="PROMPT", help="words or a prompt file that FPP stays aligned with")
    config = "settings from a file, such as report/best/knee.yaml of a sweep"
    settings = trials.add_mutually_exclusive_group()
    settings.add_argument("--config", type=user_path, metavar="YAML", help=config)
    trial = "repeats a trial with its sweep's model, data, seeds and split, which other flags change"
    settings.add_argument("--trial", type=user_path, metavar="SWEEP/TRIAL", help=trial)
    add_flags(options, *RUN_FLAGS)
    resume = "continue this run, with what its folder names; default: the last one"
    resuming = options.add_argument_group("resuming")
    resuming.add_argument("--resume", nargs="?", const="", metavar="NAME", help=resume)
    return options.parse_args(argv)


if __name__ == "__main__":
    run(main)
