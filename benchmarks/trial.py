"""One whole trial on ten sets of rendered images: `python -m benchmarks.trial --device cuda`.

The in-process executor runs the trial as in a sweep: it decodes, draws and encodes all views, pretrains and adapts. The
model is a ViT-B-16 with random weights. The datasets have the paper's numbers of classes, `--images` JPEG files of
several sizes each, and ImageNet's names as class names. A second trial reads the features from the cache.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from benchmarks.features import photographs
from benchmarks.harness import check_equal, finish, measure, parse, require_open_clip
from benchmarks.world import FILE, PAPER_CLASSES
from fpp_sweep.cli import Parser, run
from fpp_sweep.spec.config import TrialConfig, preset
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.progress import Bar
from fpp_sweep.spec.specs import Precision, WorkerSpec
from fpp_sweep.trial.results import MemoryStore
from fpp_sweep.trial.trial import DatasetResult, Plan, run_trial
from fpp_sweep.trial.worker import LocalExecutor, Worker

STAGES = ("features", "pretrain", "adapt")


def main(argv: Sequence[str] | None = None) -> None:
    args = parse("benchmarks.trial", __doc__ or "", _options, argv)
    require_open_clip()
    config = config_of(args)
    with tempfile.TemporaryDirectory() as folder:
        executor, plan = prepare(args, Path(folder))
        results: list[DatasetResult] = []
        first = measure(lambda: results.extend(run_trial(plan, config, "test", executor)[1]), device=args.device)
        if args.quick:
            again = run_trial(plan, config, "test", replace(executor, store=MemoryStore()))[1]
            check_equal(confidences(again), confidences(results), "the trial again, features cached")
        other = config.replace({"adapt.lr": 2 * config.adapt.lr, "fpp.gamma2": config.fpp.gamma2 + 1})
        second = measure(lambda: run_trial(plan, other, "test", executor), device=args.device)
    rows = [row(result) for result in results]
    totals = {stage: sum(result.costs.get(stage, 0.0) for result in results) for stage in STAGES}
    shares = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in totals.items())
    notes = [
        f"{args.images} images of {args.views} views a dataset, {args.steps} steps, {args.precision}: {shares}.",
        f"The trial: {first.wall:.1f} s; one with other settings, features cached: {second.wall:.1f} s.",
    ]
    finish(args, rows, {"first": first, "second": second, "stages": totals}, notes)


def _options(options: Parser) -> None:
    options.add_argument("--model", default="ViT-B-16", choices=("ViT-B-16", "tiny"), help="with random weights")
    options.add_argument("--images", type=int, default=64, metavar="N", help="images of each of the ten datasets")
    options.add_argument("--views", type=int, default=64, metavar="N", help="views per image")
    options.add_argument("--steps", type=int, default=1000, metavar="N", help="steps of pretraining")
    options.add_argument("--loaders", type=int, default=0, metavar="N", help="processes that read images")
    options.add_argument("--precision", choices=get_args(Precision), default="float32")


def config_of(args: Any) -> TrialConfig:
    """Return the config of the trial; complete the options of the command that it depends on."""
    if args.quick:
        args.model, args.images, args.views, args.steps = "tiny", 2, 4, 3
    config = TrialConfig()
    if args.model == "tiny":
        config = preset("tiny")
    return config.replace(
        {
            "method": "tpt",
            "prompt": "fpp",
            "precision": args.precision,
            "fpp.steps": args.steps,
            "views.count": args.views,
            "adapt.view_fraction": max(0.1, 1 / args.views),
        }
    )


def prepare(args: Any, folder: Path) -> tuple[LocalExecutor, Plan]:
    """Return an executor whose worker has loaded its model, and a plan of the ten datasets."""
    spec = WorkerSpec(
        model=args.model if args.model == "tiny" else checkpoint(folder),
        dataset_file=str(datasets(folder, args.images)),
        cache=str(folder / "cache"),
        loaders=args.loaders,
        device=args.device,
        threads=args.threads,
        precisions=(args.precision,),
    )
    worker = Worker(spec, Bar)  # the bar shows the renderer of views and the shares of time
    facts = tuple(worker.describe([], "test"))
    plan = Plan(datasets={"test": facts}, seeds=(0,))
    print(f"{worker.model_info().name} on {worker.model_info().device}, {len(facts)} datasets", flush=True)
    return LocalExecutor(worker, TaskKeys(worker.model_info(), plan.datasets_by_key())), plan


def checkpoint(folder: Path) -> str:
    """Write ViT-B-16 with open_clip's initial weights and return its model name."""
    # `require_open_clip` has reported a missing package before
    from open_clip import get_model_config
    from open_clip.model import CLIP

    torch.manual_seed(0)
    torch.save(CLIP(**get_model_config("ViT-B-16"), quick_gelu=True).state_dict(), folder / "random.pt")
    return f"ViT-B-16-quickgelu:{folder / 'random.pt'}"


def datasets(folder: Path, images: int) -> Path:
    """Write a file of ten datasets on the same photographs with different classes."""
    ids = photographs(folder / "photographs", images).ids
    names = [text.removesuffix(".") for text, _ in json.loads(FILE.read_text())["imagenet"]]
    lines = []
    for name, classes in PAPER_CLASSES.items():
        unread = [[f"{label}-unread.jpg", label, names[label]] for label in range(classes)]
        test = [[sample, index % classes, names[index % classes]] for index, sample in enumerate(ids)]
        (folder / f"{name}.json").write_text(json.dumps({"train": unread, "test": test}))
        lines.append(f"rendered-{name}: {{layout: split_json, images: photographs, split_file: {name}.json}}")
    (folder / "datasets.yaml").write_text("\n".join(lines) + "\n")
    return folder / "datasets.yaml"


def confidences(results: Sequence[DatasetResult]) -> Tensor:
    return torch.from_numpy(np.concatenate([result.predictions.confidence for result in results]))


def row(result: DatasetResult) -> dict[str, object]:
    count = len(result.predictions)
    cells: dict[str, object] = {"dataset": result.dataset.name, "K": len(result.dataset.classes), "images": count}
    cells["features, images/s"] = f"{count / result.costs['features']:.3g}"
    cells["pretraining, s"] = f"{result.costs['pretrain']:.1f}"
    cells["adaptation, ms an image"] = f"{1e3 * result.costs['adapt'] / count:.1f}"
    return cells


if __name__ == "__main__":
    run(main)
