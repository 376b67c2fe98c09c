"""The section of a page on datasets: gains and losses of all trials, and the front's values on each dataset."""

from __future__ import annotations

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.front import splits_of
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.report.dataset_heatmap import heat_map
from fpp_sweep.report.document import Block, Section, Text
from fpp_sweep.report.front_table import dataset_table


def datasets_section(info: SweepInfo, statistics: SweepStatistics) -> Section:
    """Return the heat map of all trials, and a table of the front for each split."""
    front = statistics.front
    explanation = (
        "A cell is a trial's value on a dataset minus the dataset's median; blue is better, best trials on top."
    )
    blocks: list[Block] = [Section("Gains and losses", [heat_map(info, front), Text(explanation, "faint")])]
    for split in splits_of(info, front.compared):
        table = dataset_table(front, statistics, split)
        if table.rows:
            blocks.append(table)
    if not front.compared:
        blocks.append(Text(front.why_empty, "faint"))
    return Section("Datasets", blocks, anchor="datasets")
