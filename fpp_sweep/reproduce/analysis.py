"""Experiments that need no sweep: the paper's theory, computed in this process on a model's text features."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from fpp_sweep.core.compute.devices import choose_device
from fpp_sweep.core.datasets import custom_datasets, expand, open_dataset
from fpp_sweep.core.models.loading import load
from fpp_sweep.report.document import Document, Section, Text, document_to_markdown, document_to_text
from fpp_sweep.report.figures import Chart, Series, StaticFigure, draw_charts, series_styles
from fpp_sweep.report.table import Table
from fpp_sweep.reproduce.experiments import Experiment
from fpp_sweep.reproduce.figures import write_static_figure
from fpp_sweep.reproduce.tables import save_experiment
from fpp_sweep.reproduce.theory import Finding, Setting, Sizes, findings_of
from fpp_sweep.reproduce.theory.entropy import MEASURES, fit_line, image_entropy, nearby_features, uniform_entropy
from fpp_sweep.space.space import Space
from fpp_sweep.spec.files import require_inside, written_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

SHARE_HEADS = ("penalty", "views", "R2 of the mean entropy")


def compute(experiment: Experiment, space: Space, folder: Path) -> str:
    """Return the findings, or the shares that penalties explain, as text; write tables and figures.

    The space gives the model, the dataset (the first one), and the settings of pretraining and adaptation. The files
    go to the experiment's folder in that of the reproduction; raise InputError if a link leads from there elsewhere.
    """
    own_folder = folder / experiment.name
    report = require_inside(folder, own_folder / "report")
    setting, title = _open_setting(experiment.name, space)
    if experiment.theory == "em_reg":
        figure, shares = entropy_and_penalties(setting)
        write_static_figure(report, figure)
        rows: Sequence[Sequence[str]] = [SHARE_HEADS, *shares]
        table = Table.of_strings(SHARE_HEADS, shares, text_columns=(0, 1))
        document = Document(title, [Section(title, [Text(f"figure: {report / 'figure.png'}"), table])])
    else:
        findings = findings_of(setting)
        rows = finding_rows(findings)
        document = findings_document(title, findings)
        _write(report / "table.md", document_to_markdown(document))
    _write(report / "table.csv", _csv(rows))
    save_experiment(own_folder, experiment, {}, [])
    return document_to_text(document)


def _open_setting(name: str, space: Space) -> tuple[Setting, str]:
    """Load the model and views of a space; return them with a title that repeats its settings."""
    work = space.work
    clip = load(work.model, choose_device("cpu"))
    custom = custom_datasets(work.datasets, work.dataset_file)
    data_root = None
    if work.data_root:
        data_root = Path(work.data_root)
    dataset_name = expand(list(work.datasets) or list(custom), custom)[0]
    dataset = open_dataset(dataset_name, space.search.split, data_root, custom).head(work.limit)
    setting = Setting.of(clip, dataset, space.start(), work.seeds[0], Sizes())
    fpp = space.start().fpp
    noise = f"fpp.context_var {fpp.context_var:g}, fpp.class_var {fpp.class_var:g}, fpp.steps {fpp.steps}"
    return setting, f"{name}, on model {clip.name} with the classes and images of {dataset_name}; {noise}"


def _write(file: Path, text: str) -> None:
    with written_whole(file) as partial:
        partial.write_text(text, encoding="utf-8")


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


# --- entropy against penalties ------------------------------------------------------------------------


def entropy_and_penalties(setting: Setting) -> tuple[StaticFigure, list[list[str]]]:
    """Compare the mean entropy of prompts around the anchor prompt with the penalties of C-TPT and O-TPT.

    The penalties are the paper's stand-ins and those that run; views are uniform at temperature 1 and real at the
    model's temperature.
    """
    scale = setting.model.logit_scale
    features = nearby_features(setting)
    entropies = {
        "uniform views, logits x 1": uniform_entropy(setting, features, 1.0),
        f"real views, logits x {scale:.3g}": image_entropy(setting, features, scale),
    }
    lines: list[dict[str, object]] = []
    shares = []
    charts = []
    for views, values in entropies.items():
        for name, measure in MEASURES.items():
            x = measure(features)
            shares.append([name, views, f"{fit_line(x, values)[1]:.2f}"])
            charts.append(_entropy_chart(name, views, x, values))
            for penalty, entropy in zip(x.tolist(), values.tolist(), strict=True):
                lines.append({"views": views, "measure": name, "value": penalty, "entropy": entropy})

    def draw(canvas: Canvas) -> None:
        draw_charts(canvas, charts, across=len(MEASURES))

    caption = "mean entropy of prompts around the anchor prompt against penalties"
    return StaticFigure(kind="em_reg", caption=caption, data=lines, draw=draw), shares


def _entropy_chart(name: str, views: str, x: Tensor, entropies: Tensor) -> Chart:
    series = Series(kind="points", style=series_styles()[0], xs=x.tolist(), ys=entropies.tolist())
    return Chart(x_title=name, y_title=f"mean entropy, {views}", series=[series])


# --- findings -----------------------------------------------------------------------------------------


def findings_document(title: str, findings: Sequence[Finding]) -> Document:
    """Return a section for each finding: the verdict, the paper's statement, and the numbers."""
    sections = [Section(title, [])]
    for finding in findings:
        rows = [[key, f"{value:.4g}"] for key, value in finding.measured.items()]
        table = Table.of_strings(["measured", "value"], rows)
        sections.append(Section(f"{finding.name}: {finding.verdict}", [Text(f"The paper: {finding.says}."), table]))
    return Document(title, sections)


def finding_rows(findings: Sequence[Finding]) -> list[list[str]]:
    """Return the lines of the CSV, with its head."""
    rows = [["finding", "verdict", "measured", "value"]]
    for finding in findings:
        for key, value in finding.measured.items():
            rows.append([finding.name, finding.verdict, key, f"{value:.6g}"])
    return rows
