"""The files of a comparison, and what `compare` prints of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report.comparison import SweepComparison, compare_sweeps
from fpp_sweep.report.comparison_picture import comparison_figure
from fpp_sweep.report.comparison_view import sweep_comparison_document
from fpp_sweep.report.document import Document, Html, document_to_latex, document_to_markdown, document_to_text
from fpp_sweep.report.html import write_html
from fpp_sweep.report.text_layout import output_width
from fpp_sweep.report.trial_comparison import compare_trials
from fpp_sweep.report.trial_comparison_view import trial_comparison_document
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import written_whole
from fpp_sweep.spec.messages import printable

COMPARISONS = Path("comparisons")
LONGEST_NAME = 150  # characters of a folder that is named after what is compared


def write_trial_comparison(sweep: Path, names: Sequence[str], split: str | None, out: Path | None) -> str:
    """Compare trials of a sweep; write the tables, and return them for the terminal with the paths of the files."""
    folder = SweepFolder.open(sweep)
    comparison = compare_trials(folder, names, split)
    labels = list(comparison.results)
    document = trial_comparison_document(f"{folder.path.name}: {', '.join(labels)}", comparison)
    return _write_tables(out or _default_folder([folder.path.name, *labels]), document)


def write_sweep_comparison(sweeps: Sequence[Path], targets: Sequence[float], out: Path | None) -> str:
    """Compare sweeps; write tables, picture and page; return the tables for the terminal with the files' paths."""
    comparison = compare_sweeps(_by_label([SweepFolder.open(sweep) for sweep in sweeps]))
    n_objectives = len(comparison.info.objectives)
    if len(targets) not in (0, n_objectives) or not np.isfinite(targets).all():
        raise InputError(f"give a value of each of {comparison.info.goals}, got {list(targets)}", "--target")
    document = sweep_comparison_document(comparison, targets)
    out = out or _default_folder([sweep.label for sweep in comparison.sweeps])
    text = _write_tables(out, document)
    _write_page(out, document, comparison)
    page = (out / "comparison.html").resolve().as_uri()
    return f"{text}\npicture   {printable(out / 'comparison.png')}\npage      {printable(page)}"


def _by_label(folders: Sequence[SweepFolder]) -> dict[str, SweepFolder]:
    """Return the sweeps by name; where two have one name, by as many folders of their paths as tell them apart."""
    paths = [folder.path.resolve() for folder in folders]
    labelled = {}
    for folder, path in zip(folders, paths, strict=True):
        if paths.count(path) > 1:
            raise InputError(f"{path}: is given twice; give different sweeps")
        labelled[_shortest_label(path, paths)] = folder
    return labelled


def _shortest_label(path: Path, paths: Sequence[Path]) -> str:
    """Return the last parts of a path that no other path ends with.

    >>> _shortest_label(Path("/a/sweeps/far"), [Path("/a/sweeps/far"), Path("/b/sweeps/far"), Path("/b/far")])
    'a/sweeps/far'
    """
    for size in range(1, len(path.parts)):
        endings = [candidate.parts[-size:] for candidate in paths]
        if endings.count(path.parts[-size:]) == 1:
            return "/".join(path.parts[-size:])
    return str(path)


def _default_folder(labels: Sequence[str]) -> Path:
    name = "-".join(labels).replace("/", "_")
    return COMPARISONS / name[:LONGEST_NAME]


def _write_tables(out: Path, document: Document) -> str:
    """Write the tables as Markdown and LaTeX; return them as text, with the paths of the files."""
    markdown, latex = out / "comparison.md", out / "comparison.tex"
    for path, text in ((markdown, document_to_markdown(document)), (latex, document_to_latex(document))):
        with written_whole(path) as partial:
            partial.write_text(text, encoding="utf-8")
    paths = f"Markdown  {printable(markdown)}\nLaTeX     {printable(latex)}"
    return f"{document_to_text(document, output_width())}\n\n{paths}"


def _write_page(out: Path, document: Document, comparison: SweepComparison) -> None:
    figure = comparison_figure(comparison)
    with written_whole(out / "comparison.png") as partial:
        partial.write_bytes(figure.to_bytes("png"))
    picture = Html(f'<figure class="wide" tabindex="0">{figure.to_svg()}</figure>')
    write_html(out / "comparison.html", replace(document, introduction=[picture]))
