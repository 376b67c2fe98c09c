"""The entries of a comparison, its files, and its tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import TrialRecord
from fpp_sweep.report.comparison import Entry, LoadedSweep, compare
from fpp_sweep.report.comparison_view import comparison_sections
from fpp_sweep.report.document import blocks_to_latex, blocks_to_markdown, blocks_to_text
from fpp_sweep.report.text import output_width
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import written_whole
from fpp_sweep.spec.messages import printable

COMPARISONS = Path("comparisons")
LONGEST_NAME = 150  # characters of a folder that is named after what is compared


def write_comparison(
    sweeps: Sequence[Path], names: Sequence[str], split: str | None = None, out: Path | None = None
) -> str:
    """Compare named records of a sweep, or the best trials of several; return tables and files for the terminal."""
    folders = [SweepFolder.open(sweep) for sweep in sweeps]
    if names:
        entries = trial_entries(folders[0], names)
        labels = [entry.label for entry in entries]
        title, folder_name = f"{folders[0].path.name}: {', '.join(labels)}", "-".join([folders[0].path.name, *labels])
    else:
        entries = sweep_entries(folders)
        labels = list(dict.fromkeys(entry.sweep.label for entry in entries))
        title, folder_name = ", ".join(labels), "-".join(labels)
    sections = comparison_sections(compare(entries, split))
    out = out or COMPARISONS / folder_name.replace("/", "_")[:LONGEST_NAME]
    markdown, latex = out / "comparison.md", out / "comparison.tex"
    for path, text in ((markdown, blocks_to_markdown(title, sections)), (latex, blocks_to_latex(sections))):
        with written_whole(path) as partial:
            partial.write_text(text, encoding="utf-8")
    paths = f"Markdown  {printable(markdown)}\nLaTeX     {printable(latex)}"
    return f"{blocks_to_text(sections, output_width())}\n\n{paths}"


def trial_entries(folder: SweepFolder, names: Sequence[str]) -> list[Entry]:
    """Return records of a sweep, each once, trials before baselines: differences are trial minus baseline."""
    records = {}
    for name in names:
        record = folder.known_trial(name)
        if record.state != "complete":
            raise InputError(f"{name} is {record.state}: only complete trials can be compared")
        records[record.name] = record
    if len(records) < 2:
        raise InputError(f"{names[0]} alone: give two or more trials or baselines, or another sweep")
    sweep = LoadedSweep.of(folder.path.name, folder)
    in_order = sorted(records.values(), key=lambda record: record.kind == "baseline")
    return [Entry(record.label, record, sweep) for record in in_order]


def sweep_entries(folders: Sequence[SweepFolder]) -> list[Entry]:
    """Return the marked trials of each sweep's front, then the baselines; one that several sweeps have only once."""
    trials = []
    baselines: dict[object, Entry] = {}
    for label, folder in labelled(folders).items():
        sweep = LoadedSweep.of(label, folder)
        front = sweep.statistics.front
        marked = [member for member in front.members if front.marks[member.name]]
        if not marked:
            raise InputError(f"{label}: {front.why_empty}")
        trials += [Entry(f"{label}/{member.label}", member, sweep) for member in marked]
        for baseline in front.baselines:
            baselines.setdefault(_identity(baseline, sweep), Entry(baseline.label, baseline, sweep))
    return [*trials, *_distinguished(list(baselines.values()))]


def _identity(baseline: TrialRecord, sweep: LoadedSweep) -> object:
    return baseline.name, baseline.key, sweep.info.model_digest


def _distinguished(baselines: Sequence[Entry]) -> list[Entry]:
    """Return baselines whose labels are unique: a second one of a label is named after its sweep, too."""
    by_label: dict[str, Entry] = {}
    for entry in baselines:
        label = entry.label
        if label in by_label:
            label = f"{entry.sweep.label}/{label}"
        by_label[label] = Entry(label, entry.record, entry.sweep)
    return list(by_label.values())


def labelled(folders: Sequence[SweepFolder]) -> dict[str, SweepFolder]:
    """Return sweeps by name; where two have one name, by as many folders of their paths as tell them apart."""
    paths = [folder.path.resolve() for folder in folders]
    by_label = {}
    for folder, path in zip(folders, paths, strict=True):
        if paths.count(path) > 1:
            raise InputError(f"{path}: is given twice; give different sweeps")
        by_label[_shortest_label(path, paths)] = folder
    return by_label


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
