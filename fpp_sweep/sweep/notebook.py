"""A sweep as a notebook shows it: rows, figures, predictions and HTML, from its folder alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, format_result, front_of, metrics_shown, splits_of
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.evidence import Evidence, evidence_of
from fpp_sweep.report.html import Plot, paragraph, table_of_words
from fpp_sweep.report.words import beside
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

    return {plot.name: Figure(data=list(plot.traces), layout=plot.layout) for plot in _plots(folder) if plot.traces}


def _plots(folder: SweepFolder) -> list[Plot]:
    from fpp_sweep.report.importance import importances
    from fpp_sweep.report.page import figures as drawn

    info, records = folder.info(), folder.trials()
    front = front_of(info, records)
    evidence = evidence_of(folder.artifacts, info, front)
    return drawn(folder, info, records, front, evidence, importances(info, front.finished)).everything


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
    columns = [
        (split, metric) for split in splits_of(info, front.compared) for metric in metrics_shown(info.objectives)
    ]
    heads = ["", *(metric if split == info.search_split else f"{split}/{metric}" for split, metric in columns), ""]
    rows = [
        [
            record.label,
            *(
                f"{format_result(metric, record.results.get(split))} {beside(evidence, record.name, split, metric)}"
                for split, metric in columns
            ),
            ", ".join(filter(None, [evidence.standing(record.name), *front.remarks(record)])),
        ]
        for record in front.compared
    ]
    told = map(paragraph, sentences(info, records, judged=bool(evidence.splits)))
    return "\n".join([*told, table_of_words(heads, rows) if rows else ""])
