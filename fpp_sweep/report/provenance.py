"""Section on the origin of a sweep's numbers: the search space, how they are computed, commands and versions."""

from __future__ import annotations

from collections.abc import Iterator

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, splits_of
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.records.texts import format_range, format_values
from fpp_sweep.report.document import Block, Code, Section, Text, paragraphs
from fpp_sweep.report.table import Table
from fpp_sweep.spec.messages import command_line, runnable
from fpp_sweep.spec.validation import as_mapping


def provenance_section(folder: SweepFolder, info: SweepInfo, front: Front) -> Section:
    blocks: list[Block] = []
    ranges = [(key, format_range(searched, key)) for key, searched in as_mapping(info.space.get("params", {})).items()]
    if ranges:
        blocks.append(Section("Search space", [Table.of_strings(["setting", "range"], ranges, text_columns=(0, 1))]))
    blocks.append(Section("How the numbers are computed", paragraphs(_computation(info, front))))
    blocks.append(Section("Commands", list(_commands(folder, info))))
    rows = sorted((name, value) for name, value in info.provenance().items() if name != "command")
    blocks.append(Section("Versions and settings", [Table.of_strings(["name", "value"], rows, text_columns=(0, 1))]))
    return Section("Provenance", blocks, anchor="provenance")


def _commands(folder: SweepFolder, info: SweepInfo) -> Iterator[Block]:
    commands = {
        "Run this sweep:": info.command,
        "Show its current state:": runnable(command_line("show", [str(folder.path)])),
        "Write this page again:": runnable(command_line("show", [str(folder.path), "--page"])),
    }
    for purpose, command in commands.items():
        if command:
            yield Text(purpose)
            yield Code(command)


def _computation(info: SweepInfo, front: Front) -> Iterator[str]:
    counts = []
    for split in splits_of(info, front.compared):
        samples = [record.results[split].samples for record in front.compared if split in record.results]
        if samples:
            counts.append(f"{max(samples)} images of {split}")
    if counts:
        yield f"Each trial is measured on {', '.join(counts)}, each image once for each seed."
    yield (
        "Accuracy and calibration errors are percentages; ECE has 20 bins of equal width. A value is the unweighted "
        "mean over datasets, then over seeds. With several seeds, ± is the standard deviation of that mean over seeds."
    )
    yield (
        f"Trials are chosen by their values on the {info.search_split} split. A finished trial that keeps all "
        "constraints is on the front unless another one is at least as good in every objective and better in one."
    )
    if front.reference is not None:
        corner = format_values(info.objectives, front.reference)
        yield f"The hypervolume is the volume that the front dominates, up to the reference point {corner}."
    corner = "the median trial"
    if front.own_baselines:
        corner = "the worst baseline or the median trial, whichever is worse"
    yield (
        "The knee is the member with the best trade-off: the largest volume between its values and those of "
        f"{corner}, each objective measured in shares of the front's gain."
    )
    yield "The folder best/ beside this page has the configs of the front, its knee and the best in each objective."
