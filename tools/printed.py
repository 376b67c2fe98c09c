"""Write the page of printed numbers that contradict code or each other: `python -m tools.printed > docs/printed.md`.

`printed.yaml` beside this file has the data. Means are computed from their cells.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fpp_sweep.space.yamlfile import read

PATH = Path(__file__).with_suffix(".yaml")
HEAD = """# Printed numbers and released code

This page lists what is printed in the field and does not agree with released code or with itself. It is generated from
`tools/printed.yaml`; printed numbers of single datasets are in the tables of `reproduce`:

    python -m tools.printed > docs/printed.md
"""


def data() -> dict[str, Any]:
    plain = read(PATH, "table of printed numbers").plain()
    return dict(plain)


def mean_of(cells: Sequence[float]) -> float:
    return statistics.fmean(cells)


def corrected(slip: Mapping[str, Any]) -> float:
    """Return the mean of a slip's cells after the wrong ones are replaced."""
    change = sum(slip["by"]) - sum(slip["replaced"])
    return float(slip["mean_of_cells"] + change / slip["count"])


def page() -> str:
    tables = data()
    return "\n".join([HEAD, *_means(tables["means"]), *_slips(tables["slips"]), *_differences(tables["differences"])])


def _means(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Means\n"
    yield "| method | source | what | printed | mean of its cells |\n|---|---|---|---|---|"
    for row in rows:
        mean = f"{mean_of(row['cells']):.2f}"
        yield f"| {row['of']} | {row['where']} | {row['what']} | {row['printed']:.2f} | {mean} |"


def _slips(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "\n## Cells of another row\n"
    yield "| method | source | what | printed mean | mean of its cells | after correction |\n|---|---|---|---|---|---|"
    for row in rows:
        means = f"{row['printed']} | {row['mean_of_cells']} | {corrected(row):.2f}"
        yield f"| {row['of']} | {row['where']} | {row['what']} | {means} |"


def _differences(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "\n## Paper and code\n"
    yield "| method | as printed | as released | here |\n|---|---|---|---|"
    for row in rows:
        yield f"| {row['of']} | {row['paper']} | {row['code']} | {row['here']} |"


if __name__ == "__main__":
    print(page())
