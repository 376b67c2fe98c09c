"""Which datasets are there, and what is missing: `python -m fpp_sweep.datasets --data-root DIR`."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fpp_sweep.cli.command import parser, run
from fpp_sweep.spec.errors import InputError, escaped
from fpp_sweep.spec.progress import Bar

if TYPE_CHECKING:  # core.datasets loads numpy, so functions import it: `--help` does without
    from fpp_sweep.core.datasets import DatasetSpec, Listing

WIDTH = 100  # columns
BATCH = 256  # images that wait to be verified; a queue of all of ImageNet's would fill the memory
EXIT_STATUS = """\
exit status: 0 if every dataset that was asked for is found and, with --verify, every image can be
read; 1 if not; 2 for bad input, such as a data root that is not there. A dataset is found if its
test split is. Asked for are the datasets of --datasets and of --dataset-file; with neither, the
table is for information, and only --verify can fail."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What there is of a dataset, and by split what is wrong with the rest."""

    name: str
    spec: DatasetSpec
    splits: Mapping[str, Listing] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def found(self) -> bool:
        return "test" in self.splits


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    specs, asked_for = choose(args)
    surveys = [survey(name, spec, args.data_root) for name, spec in specs.items()]
    print("\n".join(table(surveys, args.data_root)), flush=True)
    missing = [item.name for item in surveys if item.name in asked_for and not item.found]
    damaged = verify(surveys) if args.verify else 0
    if missing or damaged:
        sys.exit(1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.datasets", __doc__ or "")
    options.epilog = EXIT_STATUS
    add = options.add_argument
    add("--data-root", type=Path, metavar="DIR", help="folder of the datasets in CoOp's layout")
    add("--dataset-file", type=Path, metavar="YAML", help="datasets of your own (docs/datasets.md)")
    add("--datasets", nargs="+", metavar="NAME", help="names or groups; default: all")
    add("--verify", action="store_true", help="open every image, and name those that are damaged")
    return options.parse_args(argv)


def choose(args: argparse.Namespace) -> tuple[dict[str, DatasetSpec], set[str]]:
    """The datasets to look at, and which of them the user asked for."""
    from fpp_sweep.core.datasets import DATASETS, expand, read_custom, require_root

    if args.data_root is not None:
        require_root(args.data_root)
    custom = read_custom(args.dataset_file) if args.dataset_file else {}
    names = expand(args.datasets or ["all"], custom)
    asked_for = {*names} if args.datasets else {*custom}
    known = DATASETS | custom
    return {name: known[name] for name in names}, asked_for


def survey(name: str, spec: DatasetSpec, root: Path | None) -> Survey:
    from fpp_sweep.core.datasets import list_split

    splits, problems = {}, {}
    for split in spec.layout.splits:
        try:
            splits[split] = list_split(name, spec, split, root)
        except InputError as error:
            problems[split] = str(error).removeprefix(f"{name}: ").replace(f"{root}{os.sep}", "")
    return Survey(name, spec, splits, problems)


def table(surveys: Sequence[Survey], root: Path | None) -> Iterator[str]:
    """A row for each dataset, and below it what is wrong; paths are below the data root."""
    from fpp_sweep.core.datasets import SPLITS

    if root is not None:
        yield f"data root: {escaped(str(root))}"
    width = max(len("dataset"), *(len(item.name) for item in surveys))
    yield "  ".join([f"{'dataset':{width}}", "found", "classes", *(f"{s:>7}" for s in SPLITS)])
    for item in surveys:
        classes = next((str(len(listing.classes)) for listing in item.splits.values()), "-")
        counts = [str(len(item.splits[s].ids)) if s in item.splits else "-" for s in SPLITS]
        found = "yes" if item.found else "no"
        cells = [f"{item.name:{width}}", f"{found:5}", *(f"{c:>7}" for c in (classes, *counts))]
        yield "  ".join(cells)
        for note in notes(item):
            indented = textwrap.TextWrapper(WIDTH, "    ", "    ", break_long_words=False, break_on_hyphens=False)
            yield indented.fill(note)


def notes(item: Survey) -> Iterator[str]:
    """Each problem once, with the splits that have it; and whether there are too few images."""
    for problem in dict.fromkeys(item.problems.values()):
        splits = [split for split, same in item.problems.items() if same == problem]
        everywhere = len(splits) == len(item.spec.layout.splits)
        yield problem if everywhere else f"{', '.join(splits)}: {problem}"
    published = item.spec.test_size
    if item.found and published is not None and len(item.splits["test"].ids) != published:
        yield f"test: {len(item.splits['test'].ids)} images, but {published} were published"


def verify(surveys: Sequence[Survey]) -> int:
    """Open every image file; how many cannot be read."""
    damaged: list[str] = []
    total = 0
    for item in surveys:
        if item.spec.group == "tiny":  # drawn on demand: no file that could be damaged
            continue
        for split, listing in item.splits.items():
            total += len(listing.ids)
            damaged += read_all(f"{item.name}/{split}", listing)
    print("\n".join([*map(escaped, damaged), f"{total} images opened, {len(damaged)} of them cannot be read"]))
    return len(damaged)


def read_all(label: str, listing: Listing) -> list[str]:
    """What is wrong with the images of a split. Decoding leaves Python, so threads share it."""
    from fpp_sweep.core.datasets import BadImageError

    def reason(sample: str) -> str | None:
        try:
            listing.source.image(sample)
        except BadImageError as error:
            return str(error)
        return None

    damaged: list[str] = []
    total = len(listing.ids)
    with ThreadPoolExecutor(os.cpu_count()) as pool, Bar(label, total, "images") as bar:
        for start in range(0, total, BATCH):
            batch = listing.ids[start : start + BATCH]
            damaged += filter(None, pool.map(reason, batch))
            bar.advance(len(batch))
    return damaged


if __name__ == "__main__":
    run(main)
