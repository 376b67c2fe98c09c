"""Experiments that need no sweep: the paper's theory, computed in this process on a model's text features."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpp_sweep.core.datasets import expand, open_dataset, read_custom
from fpp_sweep.core.models.clip import choose_device
from fpp_sweep.core.models.loading import load
from fpp_sweep.report.figures import StaticFigure
from fpp_sweep.report.tables import aligned
from fpp_sweep.reproduce.figures import write_drawing
from fpp_sweep.reproduce.theory import Finding, Setting, Sizes, findings_of
from fpp_sweep.reproduce.theory.entropy import MEASURES, fit_line, image_entropy, nearby_features, uniform_entropy
from fpp_sweep.space.space import Space
from fpp_sweep.spec.files import written_whole
from fpp_sweep.spec.palette import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def compute(name: str, space: Space, folder: Path) -> str:
    """Return the findings, or the figure's caption, as text; write tables and figures to the folder.

    The space says the model, the dataset (the first one), and the settings of pretraining and adaptation.
    """
    work = space.work
    clip = load(work.model, choose_device("cpu"))
    custom = read_custom(Path(work.dataset_file)) if work.dataset_file else {}
    data_root = Path(work.data_root) if work.data_root else None
    dataset_name = expand(list(work.datasets) or list(custom), custom)[0]
    dataset = open_dataset(dataset_name, space.search.split, data_root, custom).head(work.limit)
    setting = Setting.of(clip, dataset, space.start(), work.seeds[0], Sizes())
    fpp = space.start().fpp
    noise = f"fpp.context_var {fpp.context_var:g}, fpp.class_var {fpp.class_var:g}, fpp.steps {fpp.steps}"
    title = f"\n{name}, on model {clip.name} with the classes and images of {dataset_name}; {noise}"
    if name == "em_reg":
        drawing, shares = entropy_and_penalties(setting)
        write_drawing(folder / "report", drawing)
        _write(folder, "csv", _csv([["penalty", "views", "R2 of the mean entropy"], *shares]))
        return "\n".join([f"{title}: {folder / 'report' / 'figure.png'}", *aligned(shares, words=(0, 1))])
    findings = findings_of(setting)
    for kind, text in (("csv", as_csv(findings)), ("md", as_markdown(findings))):
        _write(folder, kind, text)
    return "\n".join([title, *lines(findings)])


def _write(folder: Path, kind: str, text: str) -> None:
    with written_whole(folder / "report" / f"table.{kind}") as partial:
        partial.write_text(text, encoding="utf-8")


def entropy_and_penalties(setting: Setting) -> tuple[StaticFigure, list[list[str]]]:
    """The mean entropy of prompts around the predefined one against what C-TPT and O-TPT penalise: by the paper's
    stand-ins and as they run, for uniform views at temperature 1 and for real ones at the model's."""
    scale, features = setting.model.logit_scale, nearby_features(setting)
    kinds = ("uniform views, logits x 1", f"real views, logits x {scale:.3g}")
    entropies = uniform_entropy(setting, features, 1.0), image_entropy(setting, features, scale)
    data: list[dict[str, Any]] = []
    shares = []
    for kind, values in zip(kinds, entropies, strict=True):
        for name, measure in MEASURES.items():
            x = measure(features)
            shares.append([name, kind, f"{fit_line(x, values)[1]:.2f}"])
            pairs = zip(x.tolist(), values.tolist(), strict=True)
            data += [{"views": kind, "measure": name, "value": one, "entropy": other} for one, other in pairs]

    def draw(canvas: Canvas) -> None:
        canvas.set_size_inches(3.0 * len(MEASURES), 5.6)
        for panels, kind in zip(canvas.subplots(len(kinds), len(MEASURES), squeeze=False), kinds, strict=True):
            for axes, name in zip(panels, MEASURES, strict=True):
                own = [one for one in data if (one["views"], one["measure"]) == (kind, name)]
                axes.plot([one["value"] for one in own], [one["entropy"] for one in own], "o", color=PALETTE[0], ms=3)
                axes.set(xlabel=name, ylabel="mean entropy" if name == next(iter(MEASURES)) else "", title=kind)

    caption = "mean entropy of prompts around the predefined one against penalties"
    return StaticFigure(kind="em_reg", caption=caption, data=data, draw=draw), shares


def lines(findings: Sequence[Finding]) -> list[str]:
    """Each finding: its verdict, what the paper says, and the numbers below."""
    text = []
    for finding in findings:
        text += ["", f"{finding.name}: {finding.verdict}", f"  the paper: {finding.says}"]
        text += [f"  {line}" for line in aligned([[key, f"{value:.4g}"] for key, value in finding.measured.items()])]
    return text


def as_csv(findings: Sequence[Finding]) -> str:
    rows = [
        [finding.name, finding.verdict, key, f"{value:.6g}"]
        for finding in findings
        for key, value in finding.measured.items()
    ]
    return _csv([["finding", "verdict", "measured", "value"], *rows])


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def as_markdown(findings: Sequence[Finding]) -> str:
    rows = ["| the paper says | verdict | measured |", "|---|---|---|"]
    for finding in findings:
        measured = "; ".join(f"{key} {value:.4g}" for key, value in finding.measured.items())
        rows.append(f"| {finding.name}: {finding.says} | {finding.verdict} | {measured} |".replace("\n", " "))
    return "\n".join([*rows, ""])
