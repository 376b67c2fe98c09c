"""A document as a page: one file that loads nothing from anywhere and works in a sandboxed frame."""

from __future__ import annotations

import base64
import gzip
import html
import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fpp_sweep.report.document import Block, Code, Details, Document, Html, Plot, PlotGroup, Section, Text
from fpp_sweep.report.table import Table, to_html
from fpp_sweep.spec.files import written_whole

# nothing can be fetched or sent, even if a hostile text should get into a page
POLICY = "default-src 'none'; script-src 'unsafe-inline'{}; style-src 'unsafe-inline'; img-src data: blob:"
COMPILES_SHADERS = " 'unsafe-eval'"  # plotly's parallel coordinates do
NO_SCRIPT = "<noscript><p>Plots, the filter and the sections of trials need JavaScript, which is off.</p></noscript>"
GZIP_LEVEL = 4  # level 6 takes twice as long for pages that are 7 % smaller
ASSETS = Path(__file__).with_name("assets")


def write_html(
    path: Path, document: Document, *, trials: Mapping[str, Mapping[str, Any]] | None = None, reload_seconds: int = 0
) -> None:
    """Write a document as a page.

    `trials` are what the sections of trials show. A page with `reload_seconds` loads itself again at that
    interval; 0 means never.
    """
    plots = {plot.name: _plot_data(plot) for plot in document.plots if plot.traces}
    policy = POLICY.format(COMPILES_SHADERS if plots else "")
    # half of a character, as in a path that is not UTF-8, is written as `\udcff`
    with written_whole(path) as partial, partial.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(
            f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{safe(document.title)}</title>
<style>
{_asset("page.css")}</style>
</head>
<body data-reload-seconds="{reload_seconds}">
{_header(document)}
{NO_SCRIPT if plots or trials else ""}
<main>
{blocks_to_html(document.sections)}
</main>
"""
        )
        file.write(_script("page.js"))
        if plots or trials:
            data = json.dumps({"plots": plots, "trials": trials or {}}, allow_nan=False, separators=(",", ":"))
            file.write(_packed("page-data", pack(data)))
            file.write(_script("trials.js"))
        if plots:
            file.write(_packed("plotly", _packed_plotly()))
            file.write(_script("plots.js"))
        file.write("</body>\n</html>\n")


def _script(name: str) -> str:
    return f"<script>\n{_asset(name)}</script>\n"


def _packed(name: str, text: str) -> str:
    """Return an element that page.js unpacks; packed text cannot end it."""
    return f'<script type="text/plain" id="{name}">{text}</script>\n'


def pack(text: str) -> str:
    """Return compressed text that can stand in a page; equal texts give equal results.

    >>> pack("{}") == pack("{}")
    True
    """
    return base64.b64encode(gzip.compress(text.encode(), GZIP_LEVEL, mtime=0)).decode()


def _header(document: Document) -> str:
    lines = ["<header>", f"<h1>{safe(document.title)}</h1>", blocks_to_html(document.introduction)]
    links = []
    for section in document.sections:
        if section.anchor:
            links.append(f'<a href="#{safe(section.anchor)}">{safe(section.title)}</a>')
    if links:
        lines += ['<nav class="no-print">', *links, "</nav>"]
    return "\n".join([*lines, "</header>"])


def _plot_data(plot: Plot) -> dict[str, Any]:
    """Return what plots.js reads."""
    return {
        "traces": plot.traces,
        "layout": plot.layout,
        "zoom": plot.zoom,
        "n_outliers": plot.n_outliers,
        "choices": plot.choices,
        "group": plot.group or plot.name,
    }


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def _packed_plotly() -> str:
    """Return plotly's script, 4.8 MB, as 2 MB of text."""
    return pack(plotly_script())


def plotly_script() -> str:
    """Return what `plotly.offline.get_plotlyjs` returns, without the time to import plotly."""
    plotly = importlib.util.find_spec("plotly")
    assert plotly is not None  # a requirement of this package
    assert plotly.origin is not None
    return (Path(plotly.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


# --- blocks -------------------------------------------------------------------------------------------


def blocks_to_html(blocks: Sequence[Block], level: int = 2) -> str:
    """Return blocks as HTML; the headings of sections among them have this level."""
    parts = []
    for block in blocks:
        part = _block_to_html(block, level)
        if part:
            parts.append(part)
    return "\n".join(parts)


def _block_to_html(block: Block, level: int) -> str:
    match block:
        case Text():
            return text_to_html(block)
        case Code():
            return f"<pre>{safe(block.text)}</pre>"
        case Html():
            return block.html
        case Table():
            return to_html(block)
        case Plot():
            return _plot_to_html(block)
        case PlotGroup():
            return _group_to_html(block)
        case Details():
            return f"<details><summary>{safe(block.summary)}</summary>{blocks_to_html(block.blocks, level)}</details>"
        case Section():
            return _section_to_html(block, level)


def text_to_html(text: Text) -> str:
    if not text.text:
        return ""
    style = f' class="{text.style}"' if text.style else ""
    return f"<p{style}>{safe(text.text)}</p>"


def _section_to_html(section: Section, level: int) -> str:
    anchor = f' id="{safe(section.anchor)}"' if section.anchor else ""
    heading = f"<h{level}>{safe(section.title)}</h{level}>"
    return f"<section{anchor}>\n{heading}\n{blocks_to_html(section.blocks, level + 1)}\n</section>"


def _plot_to_html(plot: Plot) -> str:
    """Return the element in which plots.js draws a plot, below the reader's controls."""
    if not plot.traces:
        return text_to_html(Text(plot.placeholder, "faint"))
    controls = "" if plot.group else _controls([plot])
    size = f"min-width:{plot.min_width}px;min-height:{plot.layout.get('height', 0)}px"
    region = f'class="wide" tabindex="0" role="region" aria-label="chart {safe(plot.name)}"'
    return (
        f'<div class="chart">{controls}<div {region}><div class="plot" role="img" '
        f'aria-label="{safe(plot.description or plot.name)}" id="{plot.name}" style="{size}"></div></div></div>'
    )


def _group_to_html(group: PlotGroup) -> str:
    plots = "".join(_plot_to_html(plot) for plot in group.plots)
    return f'{_controls(group.plots)}<div class="charts">{plots}</div>'


def _controls(plots: Sequence[Plot]) -> str:
    """Return what the reader can choose for a plot or a group of plots: a variant, and whether outliers are shown."""
    first = plots[0]
    group = safe(first.group or first.name)
    counts = _outlier_counts(first)  # the plots of a group show the same trials
    parts = []
    if len(first.choices) > 1:
        options = "".join(f"<option>{safe(label)}</option>" for label in first.choices)
        parts.append(f'<label>{safe(first.choice_label)} <select data-choice="{group}">{options}</select></label>')
    if any(counts):
        hidden = "" if counts[0] else " hidden"
        parts.append(
            f'<button type="button" data-show-all="{group}" aria-pressed="false"{hidden}>'
            f"Show all: {counts[0]} more</button>"
        )
    if not parts:
        return ""
    return f'<div class="tools no-print">{"".join(parts)}</div>'


def _outlier_counts(plot: Plot) -> list[int]:
    """Return how many trials each variant of a plot leaves out at first."""
    if not plot.choices:
        return [plot.n_outliers]
    return [choice.get("n_outliers", plot.n_outliers) for choice in plot.choices.values()]


def safe(value: object) -> str:
    return html.escape(str(value))
