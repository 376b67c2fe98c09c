"""Evaluate methods and prompts on one machine: `python -m fpp_sweep.evaluate`.

With no arguments: zero-shot and TPT, each from "a photo of a" and from a prompt that FPP pretrains, on the embedded
small CLIP and its datasets. With a real CLIP:

    python -m fpp_sweep.evaluate --model ViT-B-16/openai --data-root DATA --datasets fine_grained --seed 0 1 2
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fpp_sweep.cli.command import PLUGIN_HELP, parser, run
from fpp_sweep.space.published import preset_for
from fpp_sweep.space.reading import read_config
from fpp_sweep.space.rules import rules, under
from fpp_sweep.space.work import Work
from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.config import EMBEDDED_LIMIT, PRESETS, TrialConfig, parse_settings, preset, require_prompt
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.messages import note
from fpp_sweep.spec.process import cores, readers, sleep_when_idle
from fpp_sweep.spec.progress import Bar
from fpp_sweep.spec.specs import DatasetInfo, PluginFile, Validation, WorkerSpec

if TYPE_CHECKING:
    from fpp_sweep.trial.worker import Worker


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    sleep_when_idle()
    files = plugins.read(args.plugin)
    plugins.load(files)
    trials = trials_of(args)
    require_named(args, trials)
    # these load torch, which `--help` and a wrong flag do without
    from fpp_sweep.report import evaluation
    from fpp_sweep.trial.local_runner import LocalExecutor
    from fpp_sweep.trial.results import TaskFailed
    from fpp_sweep.trial.trial import Plan, run_trial
    from fpp_sweep.trial.worker import Worker

    worker = Worker(spec_of(args, files), Bar)
    datasets = tuple(worker.describe(names_of(args), args.split))
    checked = check(worker, datasets, trials)
    model = worker.facts()
    plan = Plan(datasets={args.split: datasets}, seeds=(), shards=None, columns=tuple(args.columns))
    executor = LocalExecutor(worker, TaskKeys(model, plan.known(), checked.prompts))
    out = new_folder(args.out)
    print(evaluation.heading(model, args.split, trials[0][0]))
    done = []
    for config, seed in trials:
        try:
            result, datasets_run = run_trial(replace(plan, seeds=(seed,)), config, args.split, executor)
        except TaskFailed as failure:
            raise InputError(failure.reason) from failure
        by_name = {data.facts.name: data for data in datasets_run}
        trial = evaluation.Evaluation(config=config, seed=seed, result=result, datasets=by_name)
        with writing_to(out):
            evaluation.write_trial(out, trial, args.split)
        print(evaluation.trial_table(trial, with_intervals=args.intervals), flush=True)
        done.append(trial)
    print(evaluation.comparison(done))
    with writing_to(out):
        arguments = json.loads(json.dumps(vars(args), default=str))
        evaluation.write_results(out, model, args.split, done, arguments)
    print(f"results, prompts, predictions and reliability diagrams: {out}")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.evaluate", __doc__ or "")
    add = options.add_argument
    add("--model", default="tiny", help="tiny (embedded), NAME/TAG of open_clip, or NAME:/path/to/checkpoint")
    add("--data-root", type=Path, metavar="DIR", help="folder of the datasets in CoOp's layout")
    add("--dataset-file", type=Path, metavar="YAML", help="datasets of your own")
    add("--datasets", nargs="+", metavar="NAME", help="names or groups: tiny, fine_grained, natural_shifts, ...")
    add("--split", choices=("train", "val", "test"), default="test")
    add("--config", type=Path, metavar="YAML", help="settings from a file, such as a sweep's report/best/knee.yaml")
    methods = f"{', '.join(catalogue.METHODS)}; default: {catalogue.PLAIN} {catalogue.DEFAULT}, or --config's"
    add("--method", nargs="+", metavar="NAME", help=methods)
    add("--prompt", nargs="+", metavar="PROMPT", help="fpp, words, or a prompt file (ours, CoOp's or MaPLe's)")
    add("--anchor-prompt", metavar="PROMPT", help="what FPP stays aligned with: words or a prompt file")
    add("--seed", nargs="+", type=int, default=[0], metavar="N", help="of views and pretraining")
    add("--preset", choices=("auto", *PRESETS), default="auto", help="auto: tiny for the embedded model, else code")
    set_help = "such as fpp.gamma2=0.15 (docs/config.md)"
    add("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=set_help)
    images = f"images per dataset; default: all ({EMBEDDED_LIMIT} of the embedded ones)"
    add("--limit", type=int, metavar="N", help=images)
    add("--out", type=Path, metavar="DIR", help="a new folder; default: results/<time>")
    intervals = "95 %% bootstrap intervals in the tables"
    add("--intervals", action=argparse.BooleanOptionalAction, default=True, help=intervals)
    add("--cache", type=Path, metavar="DIR", help="image features; default: $FPP_SWEEP_CACHE or ~/.cache/fpp_sweep")
    add("--exact-cache", action="store_true", help="keep features in float32 rather than half precision")
    add("--on-bad-image", choices=("fail", "skip"), default="fail", help="skip: leave it out, and count it")
    add("--loaders", type=int, metavar="N", help="processes that draw views; default: 1 to 4, 0 for the embedded model")
    add("--threads", type=int, metavar="N", help="of torch; default: one for the embedded model, else all cores")
    add("--plugin", nargs="+", action="extend", type=Path, default=[], metavar="FILE", help=PLUGIN_HELP)
    add("--columns", nargs="+", default=[], choices=catalogue.COLUMNS, help="of each sample, kept with its prediction")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...")
    add("--compile", action="store_true", help="torch.compile, for long runs of few classes on a GPU (docs/engine.md)")
    args = options.parse_args(argv)
    bounds = rules(Work)  # as in a search space
    for key, value in (("limit", args.limit), ("loaders", args.loaders), ("threads", args.threads)):
        with under(f"--{key}"):
            bounds[key].check(value)
    with under("--seed"):
        bounds["seeds"].check(list(dict.fromkeys(args.seed)))
    return args


def trials_of(args: argparse.Namespace) -> list[tuple[TrialConfig, int]]:
    """Every combination of method, prompt and seed."""
    settings = parse_settings(args.set)
    for key in ("method", "prompt", "anchor_prompt"):
        if key in settings:
            raise InputError(f"--set {key}={settings[key]}: use --{key.replace('_', '-')}")
    chosen = read_config(args.config) if args.config else {}
    base = preset(preset_for(args.preset, args.model)).replace(chosen).replace(settings)
    anchor = args.anchor_prompt or base.anchor_prompt
    if anchor == "fpp":
        raise InputError(
            "--anchor-prompt fpp: FPP needs words or a prompt file to stay aligned with, such as 'a photo of a'"
        )
    methods = args.method or ([base.method] if chosen else [catalogue.PLAIN, catalogue.DEFAULT])
    for method in methods:
        catalogue.method(method)
    catalogue.require_measurable(methods, args.columns)
    prompts = args.prompt or ([base.prompt] if chosen else [anchor, "fpp"])
    return [
        (base.replace({"method": method, "prompt": prompt, "anchor_prompt": anchor}), seed)
        for seed in dict.fromkeys(args.seed)
        for prompt in dict.fromkeys(prompts)
        for method in dict.fromkeys(methods)
    ]


def require_named(args: argparse.Namespace, trials: Sequence[tuple[TrialConfig, int]]) -> None:
    """What is not there, or cannot be done here, is told before weights are fetched."""
    from fpp_sweep.core.datasets import require_known

    require_known(names_of(args), args.data_root, args.dataset_file)
    for config, _ in trials:
        require_prompt(config.source)
    if precisions := {config.precision for config, _ in trials} - {"float32"}:
        from fpp_sweep.core.compute.precision import require_able
        from fpp_sweep.core.models.clip import choose_device

        for precision in sorted(precisions):
            require_able(precision, choose_device(args.device))


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


def spec_of(args: argparse.Namespace, files: tuple[PluginFile, ...]) -> WorkerSpec:
    """What the worker of this process opens."""
    if args.cache is not None and args.cache.exists() and not args.cache.is_dir():
        raise InputError(f"--cache {args.cache} is not a folder")
    # the embedded model's operations are too small for a second thread, its images for a second process
    small = args.model == "tiny"
    loaders = 0 if small else readers()
    return WorkerSpec(
        model=args.model,
        data_root=None if args.data_root is None else str(args.data_root),
        dataset_file=None if args.dataset_file is None else str(args.dataset_file),
        limit=args.limit,
        cache=None if args.cache is None else str(args.cache),
        exact_cache=args.exact_cache,
        on_bad_image=args.on_bad_image,
        loaders=loaders if args.loaders is None else args.loaders,
        device=args.device,
        threads=args.threads or (1 if small else cores()),
        compile=args.compile,
        plugins=files,
    )


def names_of(args: argparse.Namespace) -> list[str]:
    """Names and groups of datasets; by default all of --dataset-file, else those that suit the data root."""
    if args.datasets or args.dataset_file:
        return args.datasets or []
    return ["fine_grained" if args.data_root else "tiny"]


def check(worker: Worker, datasets: Sequence[DatasetInfo], trials: Sequence[tuple[TrialConfig, int]]) -> Validation:
    """Fit every method and prompt to the model and to all class names, so that a bad one ends the run at once."""
    methods = sorted({config.method for config, _ in trials})
    prompts = sorted({(config.source, config.deep_prompts) for config, _ in trials})
    checked = worker.check(methods, prompts, datasets)
    for line in checked.notes:
        note(line)
    return checked


@contextmanager
def writing_to(out: Path) -> Iterator[None]:
    """An error of the disk, full or read-only, becomes one that names the folder."""
    try:
        yield
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror or error}; give a folder elsewhere") from error


if __name__ == "__main__":
    run(main)
