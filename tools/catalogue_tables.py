"""The tables of docs/methods.md, made from the catalogue: `python -m tools.catalogue_tables`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

from fpp_sweep.cli.command import parser, run
from fpp_sweep.core.datasets import Group
from fpp_sweep.spec import catalogue


def markdown() -> str:
    """Return the table of methods and the table of metrics."""
    listed = [row for row in catalogue.METHODS.values() if row.listed]
    by_name = [row for row in catalogue.METHODS.values() if not row.listed]
    note = "Lists and help texts leave out the following methods, which the paper's tables need; their names work."
    return "\n".join([*_method_lines(listed), "", note, "", *_method_lines(by_name), "", *_metric_lines()])


def _method_lines(rows: Iterable[catalogue.MethodRow]) -> list[str]:
    lines = [
        "| method | what it does | views | penalty's weight (on shifts) | settings that it reads |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        views = _views(row)
        weight = ""
        if row.penalty:
            weight = f"{row.weight:g} ({row.weight_on_shifts:g})"
        reads = ", ".join(f"`{_pattern(key)}`" for key in row.reads)
        lines.append(f"| `{row.name}` | {row.title} | {views} | {weight} | {reads} |")
    return lines


def _views(row: catalogue.MethodRow) -> str:
    """Return how many views a method uses; its released program may take a single plain one on some datasets."""
    if row.views is not None:
        return str(row.views)
    groups = []
    if row.protocol is not None:
        for group in get_args(Group):
            if row.protocol.kind(group) == "plain":
                groups.append(group)
    if groups:
        return f"all; 1 on {', '.join(groups)}"
    return "all"


def _pattern(key: str) -> str:
    """Return `views.*` for `views.`, which stands for all settings whose keys begin with `views.`."""
    if key.endswith("."):
        return f"{key}*"
    return key


def _metric_lines() -> list[str]:
    lines = ["| metric | what it is | goal | over datasets | in tables |", "|---|---|---|---|---|"]
    for row in catalogue.METRICS.values():
        shown = "by default" if row.shown else "on request"
        lines.append(f"| `{row.name}` | {row.title} | {row.goal} | {row.merges} | {shown} |")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    parser("tools.catalogue_tables", __doc__ or "").parse_args(argv)
    print(markdown())


if __name__ == "__main__":
    run(main)
