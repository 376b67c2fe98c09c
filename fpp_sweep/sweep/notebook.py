"""A sweep as a notebook shows it: rows, figures, predictions and HTML, from its folder alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, front_of, metrics_shown
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.document import Text
from fpp_sweep.report.evidence import Evidence, evidence_of
from fpp_sweep.report.front_table import front_table
from fpp_sweep.report.html import text_to_html
from fpp_sweep.report.table import to_html
from fpp_sweep.spec.errors import InputError
from fpp_sweep.statistics.old_bootstrap import Interval
from fpp_sweep.sweep.summary import sentences

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]
    from plotly.graph_objects import Figure  # type: ignore[import-untyped]


def row_of(info: SweepInfo, record: TrialRecord, front: Front, evidence: Evidence) -> dict[str, Any]:
    """A record, flat."""
    row: dict[str, Any] = {name: getattr(record, name) for name in ("name", "kind", "state", "origin", "reason")}
    row["marks"] = ", ".join(front.remarks(record))
    row["on_front"] = record in front.members
    row["seconds"] = record.finished - record.started if record.finished and record.started else None
    row |= record.params
    for split, result in record.results.items():
        prefix = "" if split == info.search_split else f"{split}/"
        row |= {f"{prefix}{metric}": value for metric, value in result.average.items()}
        for dataset, values in result.datasets.items():
            row |= {f"{prefix}{metric}/{dataset}": value for metric, value in values.items()}
        for metric in metrics_shown(info.objectives) if split in evidence.splits else ():
            interval = evidence.splits[split].interval(record.name, metric)
            if isinstance(interval, Interval):
                row |= {f"{prefix}{metric} low": interval.low, f"{prefix}{metric} high": interval.high}
    return row


def figures(folder: SweepFolder) -> dict[str, Figure]:
    """Those of the page; its script gives them the reader's colours, plotly's own are used here."""
    from plotly.graph_objects import Figure

    from fpp_sweep.report.page import load_report, sweep_document

    plots = sweep_document(load_report(folder)).plots
    return {plot.name: Figure(data=list(plot.traces), layout=plot.layout) for plot in plots if plot.traces}


def predictions(folder: SweepFolder, name: str, split: str) -> DataFrame:
    """Of all datasets and seeds, one below the other."""
    import pandas

    files = sorted((folder.artifacts(name) / split).glob("*.seed*.predictions.parquet"))
    if not files:
        raise InputError(
            f"{name} of {folder.path.name} has no predictions on {split}; it is {folder.trial(name).state}"
        )
    parts = []
    for file in files:
        dataset, _, seed = file.name.removesuffix(".predictions.parquet").rpartition(".seed")
        parts.append(pandas.read_parquet(file).assign(dataset=dataset, seed=int(seed)))
    return pandas.concat(parts, ignore_index=True)


def as_html(folder: SweepFolder) -> str:
    info, records = folder.info(), folder.trials()
    front = front_of(info, records)
    evidence = evidence_of(folder.artifacts, info, front)
    parts = [text_to_html(Text(line)) for line in sentences(info, records, judged=bool(evidence.splits))]
    if front.compared:
        parts.append(to_html(front_table(info, front, statistics_of(folder, info, records))))
    return "\n".join(parts)
