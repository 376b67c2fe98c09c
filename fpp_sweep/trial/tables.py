"""Per-sample predictions as a file that pandas, DuckDB and the like read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.files import written_whole


def write_predictions(made: Predictions, classes: Sequence[str], path: Path) -> None:
    """One row for each sample."""
    import pyarrow
    from pyarrow import parquet

    columns = {
        "id": list(made.ids),
        "label": made.labels,
        "predicted": made.predicted,
        "label_name": [classes[label] for label in made.labels],
        "predicted_name": [classes[label] for label in made.predicted],
        "confidence": made.confidence,
        "in_top5": made.in_top5,
        "nll": made.nll,
        "brier": made.brier,
    }
    with written_whole(path) as partial:
        parquet.write_table(pyarrow.table(columns), partial)
