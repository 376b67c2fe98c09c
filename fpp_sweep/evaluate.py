"""Evaluate methods and prompts on one machine: `python -m fpp_sweep.evaluate`.

With no arguments: zero-shot and TPT, each from "a photo of a" and from a prompt that FPP pretrains, on the embedded
small CLIP and its datasets. With a real CLIP:

    python -m fpp_sweep.evaluate --model ViT-B-16/openai --data-root DATA --datasets fine_grained --seed 0 1 2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fpp_sweep.cli import cores, parser, run, sleep_when_idle
from fpp_sweep.config import EMBEDDED_LIMIT, PRESETS, TrialConfig, parse_settings, preset
from fpp_sweep.errors import InputError

if TYPE_CHECKING:
    from fpp_sweep.core.datasets import Dataset
    from fpp_sweep.trial.bench import Bench


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    sleep_when_idle()
    trials = plan(args)
    datasets = open_datasets(args)
    bench = open_bench(args)
    check_texts(bench, datasets, trials)
    from fpp_sweep.report import evaluation as report

    heading = report.heading(bench.clip, args.split, trials[0][0])
    out = new_folder(args.out)
    print(heading)
    results = []
    for config, seed in trials:
        result = bench.run(config, datasets, seed)
        with told_of(out):
            report.write_trial(out, bench.clip, result)
        print(report.trial_table(result, with_intervals=args.intervals), flush=True)
        results.append(result)
    print(report.comparison(results))
    with told_of(out):
        report.write_results(out, bench.clip, args.split, results, arguments_of(args))
    print(f"results, prompts, predictions and reliability diagrams: {out}")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("evaluate", __doc__ or "")
    add = options.add_argument
    add("--model", default="tiny", help="tiny (embedded), NAME/TAG of open_clip, or NAME:/path/to/checkpoint")
    add("--data-root", type=Path, metavar="DIR", help="folder of the datasets in CoOp's layout")
    add("--dataset-file", type=Path, metavar="YAML", help="datasets of your own")
    add("--datasets", nargs="+", metavar="NAME", help="names or groups: tiny, fine_grained, natural_shifts, ...")
    add("--split", choices=("train", "val", "test"), default="test")
    add("--config", type=Path, metavar="YAML", help="settings from a file, such as a sweep's report/best/knee.yaml")
    add("--method", nargs="+", metavar="NAME", help="zero_shot, tpt, ctpt, otpt; default: zero_shot tpt, or --config's")
    add("--prompt", nargs="+", metavar="PROMPT", help="fpp, words, or a prompt file (ours or CoOp's)")
    add("--init", metavar="PROMPT", help="what FPP stays aligned with: words or a prompt file")
    add("--seed", nargs="+", type=int, default=[0], metavar="N", help="of views and pretraining")
    add("--preset", choices=("auto", *PRESETS), default="auto", help="auto: tiny for the embedded model, else code")
    add(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="such as fpp.gamma2=0.15 (docs/config.md)",
    )
    add(
        "--limit",
        type=int,
        metavar="N",
        help=f"images per dataset; default: all ({EMBEDDED_LIMIT} of the embedded ones)",
    )
    add("--out", type=Path, metavar="DIR", help="a new folder; default: results/<time>")
    add(
        "--intervals",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="95 %% bootstrap intervals in the tables",
    )
    add("--cache", type=Path, metavar="DIR", help="image features; default: $FPP_SWEEP_CACHE or ~/.cache/fpp_sweep")
    add("--exact-cache", action="store_true", help="keep features in float32 rather than half precision")
    add("--on-bad-image", choices=("fail", "skip"), default="fail", help="skip: leave it out, and count it")
    add("--workers", type=int, metavar="N", help="processes that make views; default: 1 to 4, 0 for the embedded model")
    add("--threads", type=int, metavar="N", help="of torch; default: one for the embedded model, else all cores")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...")
    add("--compile", action="store_true", help="torch.compile, for long runs of few classes on a GPU (docs/engine.md)")
    return options.parse_args(argv)


def plan(args: argparse.Namespace) -> list[tuple[TrialConfig, int]]:
    """Every combination of method, prompt and seed."""
    from fpp_sweep.core.methods import require_method
    from fpp_sweep.space.configfile import read_config

    if args.limit is not None and args.limit < 1:
        raise InputError(f"--limit {args.limit} leaves zero images; give 1 or more")
    name = args.preset if args.preset != "auto" else ("tiny" if args.model == "tiny" else "code")
    settings = parse_settings(args.set)
    for key in ("method", "prompt", "init"):
        if key in settings:
            raise InputError(f"--set {key}={settings[key]}: use --{key}")
    chosen = read_config(args.config) if args.config else {}
    base = preset(name).replace(chosen).replace(settings)
    init = args.init or base.init
    if init == "fpp":
        raise InputError("--init fpp: FPP needs words or a prompt file to stay aligned with, such as 'a photo of a'")
    methods = args.method or ([base.method] if chosen else ["zero_shot", "tpt"])
    for method in methods:
        require_method(method)
    prompts = args.prompt or ([base.prompt] if chosen else [init, "fpp"])
    return [
        (base.replace({"method": method, "prompt": prompt, "init": init}), seed)
        for seed in dict.fromkeys(args.seed)
        for prompt in dict.fromkeys(prompts)
        for method in dict.fromkeys(methods)
    ]


def new_folder(out: Path | None) -> Path:
    """The folder for results, which must not hold any yet."""
    out = out or Path("results") / datetime.now().strftime("%Y%m%d-%H%M%S")
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise InputError(f"--out {out} exists and is not empty; give a new folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror}") from error
    return out


def open_bench(args: argparse.Namespace) -> Bench:
    """The model, on its device, and the feature cache."""
    import torch

    from fpp_sweep.core.images.cache import default_cache
    from fpp_sweep.core.images.features import FeatureCache
    from fpp_sweep.core.models.clip import choose_device
    from fpp_sweep.core.models.loading import load
    from fpp_sweep.trial.bench import Bench

    for flag, value, least in (("--workers", args.workers, 0), ("--threads", args.threads, 1)):
        if value is not None and value < least:
            raise InputError(f"{flag} must be >= {least}, got {value}")
    # the embedded model's operations are too small for a second thread, its images for a second process
    cache = args.cache or default_cache()
    if cache.exists() and not cache.is_dir():
        raise InputError(f"--cache {cache} is not a folder")
    small = args.model == "tiny"
    torch.set_num_threads(args.threads or (1 if small else cores()))
    workers = 0 if small else min(4, max(1, cores() - 1))
    clip = load(args.model, choose_device(args.device))
    return Bench(
        clip=clip.compiled() if args.compile else clip,
        cache=FeatureCache(cache, exact=args.exact_cache),
        on_bad_image=args.on_bad_image,
        workers=workers if args.workers is None else args.workers,
    )


def check_texts(bench: Bench, datasets: Sequence[Dataset], trials: Sequence[tuple[TrialConfig, int]]) -> None:
    """Open every prompt that is named and fit it to all class names, so that a bad one is told before any work."""
    from fpp_sweep.core.prompt import is_file_name
    from fpp_sweep.trial.running import fitted, strange_note

    prompts = sorted({name for config, _ in trials for name in (config.init, config.prompt)} - {"fpp"})
    for prompt in prompts:
        fitted(bench.clip, prompt, [dataset.classes for dataset in datasets])
    words = [prompt for prompt in prompts if not is_file_name(prompt)]
    texts = [*words, *(name for dataset in datasets for name in dataset.classes)]
    if note := strange_note(bench.clip, texts):
        print(f"note: {note}", file=sys.stderr)


def open_datasets(args: argparse.Namespace) -> list[Dataset]:
    """The datasets asked for, each cut to its limit; one that is missing ends the run before it starts."""
    from fpp_sweep.core.datasets import expand, open_dataset, read_custom

    custom = read_custom(args.dataset_file) if args.dataset_file else {}
    names = args.datasets or list(custom) or ["fine_grained" if args.data_root else "tiny"]
    datasets = [open_dataset(name, args.split, args.data_root, custom) for name in expand(names, custom)]
    return [dataset.limited(args.limit) for dataset in datasets]


@contextmanager
def told_of(out: Path) -> Iterator[None]:
    """A disk that is full or forbids writing, with the folder it was about."""
    try:
        yield
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror or error}; give a folder elsewhere") from error


def arguments_of(args: argparse.Namespace) -> dict[str, object]:
    """The command line as it was understood, for the record."""
    plain = (str, int, bool, list, type(None))
    return {name: value if isinstance(value, plain) else str(value) for name, value in vars(args).items()}


if __name__ == "__main__":
    run(main)
