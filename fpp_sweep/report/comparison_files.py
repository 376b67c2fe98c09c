"""The files of a comparison, and what `compare` prints of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report.comparison import compare_sweeps, compare_trials
from fpp_sweep.report.comparison_view import parts_of_sweeps, parts_of_trials, write_comparison
from fpp_sweep.report.document import Part, as_latex, as_markdown, as_text
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import written_whole

COMPARISONS = Path("comparisons")
LONGEST_NAME = 150  # letters of a folder that is named after what is compared


def write_trial_comparison(sweep: Path, names: Sequence[str], split: str | None, out: Path | None) -> str:
    """Compare trials of a sweep on a split; write the tables, and return them with the paths of the files."""
    folder = SweepFolder.open(sweep)
    comparison = compare_trials(folder, names, split)
    labels = list(comparison.results)
    out = out or _default_folder([folder.path.name, *labels])
    return _write_tables(out, f"{folder.path.name}: {', '.join(labels)}", list(parts_of_trials(comparison)))


def write_sweep_comparison(sweeps: Sequence[Path], targets: Sequence[float], out: Path | None) -> str:
    """Compare sweeps; write tables, picture and page, and return the tables with the paths of the files."""
    comparison = compare_sweeps(_by_label([SweepFolder.open(sweep) for sweep in sweeps]))
    n_objectives = len(comparison.info.objectives)
    if len(targets) not in (0, n_objectives) or not all(math.isfinite(target) for target in targets):
        raise InputError(f"give a value of each of {comparison.info.goals}, got {list(targets)}", "--target")
    parts = parts_of_sweeps(comparison, targets)
    out = out or _default_folder([side.label for side in comparison.sides])
    text = _write_tables(out, comparison.info.name, parts)
    write_comparison(out, comparison, parts)
    page = (out / "comparison.html").resolve().as_uri()
    return f"{text}\npicture   {out / 'comparison.png'}\npage      {page}"


def _by_label(folders: Sequence[SweepFolder]) -> dict[str, SweepFolder]:
    """Return the sweeps by name, or by path where two have one name."""
    paths = [folder.path.resolve() for folder in folders]
    names = [path.name for path in paths]
    labelled = {}
    for folder, path, name in zip(folders, paths, names, strict=True):
        if paths.count(path) > 1:
            raise InputError(f"{path} is given twice; give different sweeps")
        if names.count(name) > 1:
            name = str(folder.path)
        labelled[name] = folder
    return labelled


def _default_folder(labels: Sequence[str]) -> Path:
    name = "-".join(label.replace("/", "_") for label in labels)
    return COMPARISONS / name[:LONGEST_NAME]


def _write_tables(out: Path, title: str, parts: Sequence[Part]) -> str:
    """Write the tables as Markdown and LaTeX; return them as text, with the paths of the files."""
    markdown, latex = out / "comparison.md", out / "comparison.tex"
    for path, text in ((markdown, as_markdown(title, parts)), (latex, as_latex(parts))):
        with written_whole(path) as partial:
            partial.write_text(text, encoding="utf-8")
    return f"{as_text(parts)}\n\nMarkdown  {markdown}\nLaTeX     {latex}"
