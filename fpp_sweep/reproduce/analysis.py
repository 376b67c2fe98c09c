"""Experiments that need no sweep: the paper's theory, computed in this process on a model's text features."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.core.datasets import expand, open_dataset, read_custom
from fpp_sweep.core.models.clip import choose_device
from fpp_sweep.core.models.loading import load
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.files import written_whole
from fpp_sweep.report.tables import aligned
from fpp_sweep.reproduce.theory import Finding, theory
from fpp_sweep.space.work import Work

WORDS = "a photo of a"
CLASSES = "scenes"  # the embedded set whose names and pictures are looked at, unless others are given


def compute(work: Work, folder: Path) -> str:
    """The findings as text, which are written to the folder as table.csv and table.md, too."""
    clip = load(work.model, choose_device("cpu"))
    custom = read_custom(Path(work.dataset_file)) if work.dataset_file else {}
    name = next(iter(expand(list(work.datasets) or list(custom), custom)), CLASSES)
    dataset = open_dataset(name, "test", Path(work.data_root) if work.data_root else None, custom)
    findings = theory(clip, dataset.classes, open_prompt(clip, WORDS).context)
    for kind, text in (("csv", as_csv(findings)), ("md", as_markdown(findings))):
        with written_whole(folder / "report" / f"table.{kind}") as partial:
            partial.write_text(text, encoding="utf-8")
    return "\n".join([f"\ntheory, on model {clip.name} with the classes of {name}", *lines(findings)])


def lines(findings: Sequence[Finding]) -> list[str]:
    """Each finding: its verdict, what the paper says, and the numbers below."""
    text = []
    for finding in findings:
        text += ["", f"{finding.name}: {finding.verdict}", f"  the paper: {finding.says}"]
        text += [f"  {line}" for line in aligned([[key, f"{value:.4g}"] for key, value in finding.measured.items()])]
    return text


def as_csv(findings: Sequence[Finding]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["finding", "verdict", "measured", "value"])
    for finding in findings:
        writer.writerows(
            [finding.name, finding.verdict, key, f"{value:.6g}"] for key, value in finding.measured.items()
        )
    return text.getvalue()


def as_markdown(findings: Sequence[Finding]) -> str:
    rows = ["| the paper says | verdict | measured |", "|---|---|---|"]
    for finding in findings:
        measured = "; ".join(f"{key} {value:.4g}" for key, value in finding.measured.items())
        rows.append(f"| {finding.name}: {finding.says} | {finding.verdict} | {measured} |".replace("\n", " "))
    return "\n".join([*rows, ""])
