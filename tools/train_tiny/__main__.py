"""Train the embedded CLIP: python -m tools.train_tiny --out tiny.safetensors

The same arguments, machine and libraries give the same weights again. Elsewhere the last bits differ; the weights
are shipped for this reason. `tools/train_tiny/training.py` describes the training.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tools.train_tiny.recipe import COOL_AT, COOL_STEPS, STEPS, Recipe

EVALUATED = 1000  # pictures per dataset in the final table
EVALUATED_QUICK = 20


def parser() -> argparse.ArgumentParser:
    description, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(prog="python -m tools.train_tiny", description=description, epilog=details)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="safetensors file to write")
    add("--steps", type=int, default=STEPS, help="steps of the cosine schedule; default: %(default)s")
    add("--cool-at", type=int, default=COOL_AT, metavar="STEP", help="end of the cosine; default: %(default)s")
    add("--cool-steps", type=int, default=COOL_STEPS, help="steps of linear decay after it; default: %(default)s")
    add("--whole", dest="cool_at", action="store_const", const=None, help="take all steps of the cosine")
    add("--seed", type=int, default=0, help="default: %(default)s")
    add("--threads", type=int, default=2, help="threads of torch, which change the last bits; default: %(default)s")
    add("--workers", type=int, default=2, help="processes that draw the pictures; 0: this process")
    add("--quick", action="store_true", help="take a few steps, to test the script itself")
    return parser


def recipe_of(args: argparse.Namespace) -> Recipe:
    if args.quick:
        return Recipe(
            steps=min(args.steps, 6),
            seed=args.seed,
            threads=args.threads,
            pool=256,
            batch=32,
            pairs=8,
            captions=8,
            warmup=2,
        )
    return Recipe(
        steps=args.steps, cool_at=args.cool_at, cool_steps=args.cool_steps, seed=args.seed, threads=args.threads
    )


def command_of(args: argparse.Namespace, recipe: Recipe) -> str:
    """Return the command that repeats this run, for the metadata."""
    words = ["python -m tools.train_tiny", f"--out {args.out.name}"]
    words += [f"--steps {recipe.steps}", f"--seed {recipe.seed}", f"--threads {recipe.threads}"]
    if recipe.cool_at is not None:
        words += [f"--cool-at {recipe.cool_at}", f"--cool-steps {recipe.cool_steps}"]
    if args.quick:
        words.append("--quick")
    return " ".join(words)


def main(argv: Sequence[str] | None = None) -> None:
    args = parser().parse_args(argv)
    try:
        recipe = recipe_of(args)
        if args.workers < 0:
            raise ValueError(f"workers must be >= 0, got {args.workers}")
        if not args.out.parent.is_dir():
            raise ValueError(f"{args.out}: the folder does not exist")
    except ValueError as error:
        parser().error(str(error))

    # start-up time: --help and bad arguments are answered at once
    import torch

    from tools.train_tiny import scoring, training

    torch.set_num_threads(recipe.threads)
    trained = training.train(recipe, args.workers)
    metadata = scoring.describe_run(recipe, command_of(args, recipe))
    evaluated = EVALUATED
    if args.quick:
        evaluated = EVALUATED_QUICK
    scoring.finish(trained, args.out, metadata, evaluated)


if __name__ == "__main__":
    main()
