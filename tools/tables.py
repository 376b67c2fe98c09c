"""Write the tables of the docs that follow from the code: `python -m tools.tables`.

A table stands below a line `<!-- table: NAME -->`. Names, defaults and titles come from the code. The meaning of a
setting is written by hand in the last column of its row and is kept; a new setting has an empty one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_args

from fpp_sweep.__main__ import COMMANDS
from fpp_sweep.cli import FLAGS, parser, run
from fpp_sweep.core.datasets import Group
from fpp_sweep.space.objectives import Constraint, Objective
from fpp_sweep.space.params import PARAM_KEYS
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Search, Work
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import PRESETS, TrialConfig, preset
from fpp_sweep.spec.validation import keys

DOCS = Path(__file__).parents[1] / "docs"
TABLE = re.compile(r"(<!-- table: (\w+) -->\n)((?:\|.*\n)*)")
# settings that every method with TPT's step reads
TPTS = ("adapt.steps", "adapt.lr", "adapt.weight_decay", "adapt.optimizer", "adapt.view_fraction", "views.")
Rows = Mapping[str, Sequence[str]]  # the cells of the table on the page, by the first cell


def updated(text: str) -> str:
    """Return a page with its tables as the code has them."""

    def write(match: re.Match[str]) -> str:
        head, name, rows = match.groups()
        written = {}
        for row in rows.splitlines():
            cells = [cell.strip() for cell in row.strip("|").split(" | ")]
            written[cells[0]] = cells
        return head + "\n".join(TABLES[name](written)) + "\n"

    return TABLE.sub(write, text)


def settings(written: Rows) -> list[str]:
    """Return the settings of a trial, with their values in each preset if these differ from the preset `code`."""
    lines = ["| key | code | paper | tiny | meaning |", "| --- | --- | --- | --- | --- |"]
    by_preset = {name: preset(name).flat() for name in PRESETS}
    for key, value in TrialConfig().flat().items():
        others = []
        for name in ("paper", "tiny"):
            other = by_preset[name][key]
            others.append("" if other == value else _shown(other))
        meaning = written.get(f"`{key}`", [""])[-1]
        cells = [f"`{key}`", _shown(value), *others, meaning]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def space_keys(written: Rows) -> list[str]:
    """Return the keys of a space; defaults, which are often words, and meanings are those on the page."""
    inner = {"params.*": PARAM_KEYS, "objectives.N": keys(Objective), "constraints.N": keys(Constraint)}
    inner |= {"search": keys(Search), "work": keys(Work)}
    lines = ["| key | default | meaning |", "| --- | --- | --- |"]
    for key in keys(Space):
        names = [] if key in ("search", "work") else [key]
        for path, parts in inner.items():
            if path.partition(".")[0] == key:
                names += [f"{path}.{part}" for part in parts]
        for name in names:
            lines.append(f"| {' | '.join(written.get(f'`{name}`', [f'`{name}`', '', '']))} |")
    return lines


def _shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def commands(_: Rows) -> list[str]:
    lines = ["| command | task |", "|---|---|"]
    for name, task in COMMANDS.items():
        lines.append(f"| `{name}` | {task} |")
    return lines


def flags(_: Rows) -> list[str]:
    lines = ["| flag | short for the key | meaning |", "|---|---|---|"]
    for name, flag in FLAGS.items():
        key = f"`{flag.key}`" if flag.key else ""
        meaning = flag.help.replace("%(default)s", str(flag.default))
        lines.append(f"| `{name}` | {key} | {meaning} |")
    return lines


def methods(_: Rows) -> list[str]:
    return _method_lines(row for row in catalogue.METHODS.values() if row.listed)


def unlisted(_: Rows) -> list[str]:
    return _method_lines(row for row in catalogue.METHODS.values() if not row.listed)


def _method_lines(rows: Iterable[catalogue.MethodRow]) -> list[str]:
    lines = ["| method | what it does | views | settings that it reads |", "|---|---|---|---|"]
    for row in rows:
        title = row.title
        if row.penalty:
            title += f", weight {row.weight:g}, on shifts {row.weight_on_shifts:g}"
        lines.append(f"| `{row.name}` | {title} | {_views(row)} | {_reads(row)} |")
    return lines


def _reads(row: catalogue.MethodRow) -> str:
    """Return the settings that a method reads; TPT's are named together."""
    keys = list(row.reads)
    words = []
    if set(TPTS) <= set(keys):
        words.append("TPT's")
        keys = [key for key in keys if key not in TPTS]
    words += [f"`{key}*`" if key.endswith(".") else f"`{key}`" for key in keys]
    return ", ".join(words)


def metrics(_: Rows) -> list[str]:
    """Return the metrics; those that tables show by default are marked."""
    lines = ["| metric | what it is | goal |", "|---|---|---|"]
    for row in catalogue.METRICS.values():
        mark = "*" if row.shown else ""
        lines.append(f"| `{row.name}`{mark} | {row.title} | {row.goal} |")
    return lines


def _views(row: catalogue.MethodRow) -> str:
    """Return how many views a method uses; its released program may take a single plain one on some datasets."""
    if row.views is not None:
        return str(row.views)
    groups = [group for group in get_args(Group) if row.views_on(group) == "plain"]
    if groups:
        return f"all; 1 on {', '.join(groups)}"
    return "all"


TABLES: dict[str, Callable[[Rows], list[str]]] = {
    "settings": settings,
    "space_keys": space_keys,
    "commands": commands,
    "flags": flags,
    "methods": methods,
    "unlisted": unlisted,
    "metrics": metrics,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser("tools.tables", __doc__ or "").parse_args(argv)
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text("utf-8")
        path.write_text(updated(text), "utf-8")


if __name__ == "__main__":
    run(main)
