"""Sweeps against each other, or trials of one sweep, on the images that they share: from their folders alone.

python -m fpp_sweep.compare sweeps/A sweeps/B ...                  one front of all, paired tests, what each cost
python -m fpp_sweep.compare sweeps/A trial-0003 trial-0007 tpt     these against each other, by dataset and on average
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fpp_sweep.cli.command import PLUGIN_HELP, parser, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import written_whole
from fpp_sweep.spec.process import sleep_when_idle

if TYPE_CHECKING:
    from fpp_sweep.report.document import Part


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    sleep_when_idle()
    plugins.load(plugins.read(args.plugin))
    first, *others = (_sweep(word, args.sweeps) for word in args.names)
    folder = first or SweepFolder.open(Path(args.names[0]))
    rest = args.names[1:]
    if not rest:
        raise InputError(f"{folder.path.name} alone: give another sweep, or two or more of its trials and baselines")
    known = {name for file in folder.trial_files() for name in (file.stem, file.stem.removeprefix("baseline-"))}
    for word, other in zip(rest, others, strict=True):
        if other is None and (any(others) or (word not in known and ("/" in word or Path(word).is_dir()))):
            SweepFolder.open(Path(word))  # which tells that it is none
    if not any(others):
        _trials(folder, rest, args)
    else:
        _sweeps([folder, *filter(None, others)], args)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.compare", __doc__ or "")
    options.add_argument(
        "names", nargs="+", metavar="SWEEP",
        help="folders of sweeps, or their names; or one of them, and names of its trials and baselines",
    )  # fmt: skip
    options.add_argument(
        "--sweeps", type=Path, default=Path("sweeps"), metavar="FOLDER", help="where names are looked for"
    )
    options.add_argument("--out", type=Path, metavar="FOLDER", help="default: comparisons/NAMES")
    options.add_argument("--split", choices=("val", "test"), help="of trials; default: test where all were run there")
    options.add_argument(
        "--reach", nargs="+", type=float, default=[], metavar="VALUE",
        help="of sweeps: a value of each objective, in their order; what it costs to get there is told",
    )  # fmt: skip
    options.add_argument(
        "--plugin", nargs="+", action="extend", type=Path, default=[], metavar="FILE", help=PLUGIN_HELP
    )
    return options.parse_args(argv)


def _sweep(word: str, root: Path) -> SweepFolder | None:
    """A sweep by its folder or by its name."""
    return next((folder for folder in map(SweepFolder, (Path(word), root / word)) if folder.begun), None)


def _trials(folder: SweepFolder, names: Sequence[str], args: argparse.Namespace) -> None:
    from fpp_sweep.report.comparison import compare_trials
    from fpp_sweep.report.comparison_view import parts_of_trials  # loads numpy, as do those below

    found = compare_trials(folder, names, args.split)
    title = f"{folder.path.name}: {', '.join(found.results)}"
    _write(args.out or _place([folder.path.name, *found.results]), title, list(parts_of_trials(found)))


def _sweeps(folders: Sequence[SweepFolder], args: argparse.Namespace) -> None:
    from fpp_sweep.report.comparison import compare_sweeps
    from fpp_sweep.report.comparison_view import parts_of_sweeps, write_comparison

    found = compare_sweeps(_labelled(folders))
    goals = found.info.objectives
    if len(args.reach) not in (0, len(goals)) or not all(map(math.isfinite, args.reach)):
        raise InputError(f"a value of each of {found.info.goals}, got {args.reach}", "--reach")
    parts = parts_of_sweeps(found, args.reach)
    place = args.out or _place([side.label for side in found.sides])
    _write(place, found.info.name, parts)
    write_comparison(place, found, parts)
    print(f"picture   {place / 'comparison.png'}\npage      {(place / 'comparison.html').resolve().as_uri()}")


def _labelled(folders: Sequence[SweepFolder]) -> dict[str, SweepFolder]:
    """By name, or by path where two have one name."""
    paths = [folder.path.resolve() for folder in folders]
    names = [path.name for path in paths]
    if twice := next((path for path in paths if paths.count(path) > 1), None):
        raise InputError(f"{twice} is given twice")
    return {name if names.count(name) == 1 else str(folder.path): folder
            for name, folder in zip(names, folders, strict=True)}  # fmt: skip


def _place(names: Sequence[str]) -> Path:
    return Path("comparisons") / "-".join(name.replace("/", "_") for name in names)[:150]


def _write(place: Path, title: str, parts: Sequence[Part]) -> None:
    from fpp_sweep.report.document import as_latex, as_markdown, as_text

    for name, text in (("comparison.md", as_markdown(title, parts)), ("comparison.tex", as_latex(parts))):
        with written_whole(place / name) as partial:
            partial.write_text(text, encoding="utf-8")
    print(f"{as_text(parts)}\n\nMarkdown  {place / 'comparison.md'}\nLaTeX     {place / 'comparison.tex'}")


if __name__ == "__main__":
    run(main)
