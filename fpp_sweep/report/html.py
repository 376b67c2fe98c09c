"""What every page is made of: one file that loads nothing from anywhere and may be shown in a sandbox."""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from fpp_sweep.report.theme import PLOTS, STYLE, TABLES
from fpp_sweep.spec.files import written_whole

# nothing may be fetched or sent, even if a hostile text should find a way in; parallel coordinates compile shaders
POLICY = "default-src 'none'; script-src 'unsafe-inline'{}; style-src 'unsafe-inline'; img-src data: blob:"
SHADERS = " 'unsafe-eval'"


@dataclass(frozen=True)
class Plot:
    """A plot, or the sentence shown instead of it."""

    name: str
    traces: Sequence[Mapping[str, Any]] = ()
    layout: Mapping[str, Any] = field(default_factory=dict)
    least_width: int = 0  # pixels; where the window is narrower the plot scrolls
    instead: str = ""
    says: str = ""  # to those who cannot see it
    # what may be shown instead, the first at first: label -> changes to the traces and the layout, and its own `near`
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    asks: str = "shown"  # what the choice is of
    group: str = ""  # plots that show the same choice, asked for once above them; empty: its own
    near: Mapping[str, Sequence[float]] = field(default_factory=dict)  # ranges of axes that leave outliers out
    beyond: int = 0  # points that those leave out


def write_html(
    path: Path,
    title: str,
    body: Sequence[str],
    *,
    plots: Sequence[Plot] = (),
    details: Mapping[str, Mapping[str, str]] | None = None,
    every: int = 0,
) -> None:
    """Plotly comes along only where it has something to draw; `details` are shown of a point or name that is clicked.

    `every` so many seconds the page looks whether it was written again.
    """
    drawn = {plot.name: _drawn(plot) for plot in plots if plot.traces}
    with written_whole(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY.format(SHADERS if drawn else "")}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<title>{safe(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body data-every="{every}">\n'
        )
        file.write("\n".join(filter(None, body)))
        if drawn:
            data = json.dumps({"plots": drawn, "details": details or {}}, allow_nan=False, separators=(",", ":"))
            for letter in "<>&":  # so that no text can end the script element that it stands in
                data = data.replace(letter, f"\\u{ord(letter):04x}")
            file.write(
                f'\n<dialog id="details"></dialog>\n<script type="application/json" id="sheet">{data}</script>\n'
            )
            file.write(f'<script type="text/plain" id="plotly">{_plotly()}</script>\n<script>{PLOTS}</script>')
        file.write(f"\n<script>{TABLES}</script>\n</body>\n</html>\n")


def _drawn(plot: Plot) -> dict[str, Any]:
    """What the page's script needs of it."""
    group = plot.group or plot.name
    return {"traces": plot.traces, "layout": plot.layout, "near": plot.near, "choices": plot.choices, "group": group}


@cache
def _plotly() -> str:
    """Its script, 4.8 MB, as 2 MB of compressed text that the page unpacks."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def safe(value: object) -> str:
    return html.escape(str(value))


def paragraph(text: str) -> str:
    return f"<p>{safe(text)}</p>"


def faint(text: str) -> str:
    return f'<p class="faint">{safe(text)}</p>'


def warning(text: str) -> str:
    return f'<p class="warn">{safe(text)}</p>'


def section(title: str, *parts: str, anchor: str = "") -> str:
    name = f' id="{safe(anchor)}"' if anchor else ""
    return "\n".join([f"<section{name}>\n<h2>{safe(title)}</h2>", *filter(None, parts), "</section>"])


def place(plot: Plot) -> str:
    """Where the page's script draws a plot, below what the reader may ask of it."""
    if not plot.traces:
        return faint(plot.instead)
    return (
        f'<div class="chart">{"" if plot.group else tools([plot])}<div class="wide"><div class="plot" role="img" '
        f'aria-label="{safe(plot.says or plot.name)}" id="{plot.name}" '
        f'style="min-width:{plot.least_width}px;min-height:{plot.layout.get("height", 0)}px"></div></div></div>'
    )


def places(plots: Sequence[Plot]) -> str:
    """A group of small plots side by side."""
    return f'{tools(plots)}<div class="charts">{"".join(map(place, plots))}</div>' if plots else ""


def tools(plots: Sequence[Plot]) -> str:
    """What a plot or a group shows, and whether with its outliers."""
    first, beyond = plots[0], sum(plot.beyond for plot in plots)
    group = safe(first.group or first.name)
    parts = []
    if len(first.choices) > 1:
        options = "".join(f"<option>{safe(label)}</option>" for label in first.choices)
        parts.append(f'<label>{first.asks} <select data-group="{group}">{options}</select></label>')
    if beyond:
        parts.append(f'<button type="button" data-all="{group}" aria-pressed="false">Show all: {beyond} more</button>')
    return f'<div class="tools screen">{"".join(parts)}</div>' if parts else ""


def picture(file: Path, title: str) -> str:
    """A drawn figure inside the page; nothing where there is none."""
    if not file.is_file():
        return ""
    data = base64.b64encode(file.read_bytes()).decode()
    return f'<figure><img style="max-width:100%" alt="{safe(title)}" src="data:image/png;base64,{data}"></figure>'


def table(head: str, rows: Iterable[str], *, name: str = "") -> str:
    """The page's script lets the reader sort it by the last row of its head, and filter one that has a name."""
    lines, identity = "\n".join(rows), f' id="{name}"' if name else ""
    asked = (
        f'<p class="tools screen"><label>filter <input type="search" data-filter="{name}" size="32"></label> '
        f'<output for="{name}"></output></p>'
    )
    return (
        f'{asked if name else ""}<div class="wide{" long" if name else ""}" tabindex="0" role="region" aria-label="'
        f'{name or "table"}"><table{identity}><thead>{head}</thead><tbody>\n{lines}\n</tbody></table></div>'
    )


def table_of_words(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th class="words">{safe(head)}</th>' for head in heads)
    lines = []
    for first, *others in rows:
        cells = "".join(f'<td class="words">{safe(cell)}</td>' for cell in others)
        lines.append(f"<tr><th>{safe(first)}</th>{cells}</tr>")
    return table(f"<tr>{head}</tr>", lines)


def time_of(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
