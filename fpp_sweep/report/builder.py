"""What every page is made of: one file that loads nothing from anywhere and may be shown in a sandbox."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fpp_sweep.files import written_whole
from fpp_sweep.report.theme import PLOTS, STYLE, TABLES

# nothing may be fetched or sent, even if a hostile text should find a way in; parallel coordinates compile shaders
POLICY = "default-src 'none'; script-src 'unsafe-inline'{}; style-src 'unsafe-inline'; img-src data: blob:"
SHADERS = " 'unsafe-eval'"


@dataclass(frozen=True)
class Plot:
    """A plot, or the sentence shown instead of it."""

    name: str
    traces: Sequence[Mapping[str, Any]] = ()
    layout: Mapping[str, Any] | None = None
    least_width: int = 0  # pixels; where the window is narrower the plot scrolls
    instead: str = ""


def write_html(
    path: Path,
    title: str,
    body: Sequence[str],
    *,
    plots: Sequence[Plot] = (),
    configs: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Plotly's 5 MB come along only where it has something to draw; `configs` are shown when a point is clicked."""
    drawn = [{"name": plot.name, "traces": plot.traces, "layout": plot.layout} for plot in plots if plot.traces]
    with written_whole(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY.format(SHADERS if drawn else "")}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{safe(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        )
        file.write("\n".join(filter(None, body)))
        if drawn:
            from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

            data = json.dumps({"plots": drawn, "configs": configs or {}}, allow_nan=False, separators=(",", ":"))
            for letter in "<>&":  # so that no text can end the script element that it stands in
                data = data.replace(letter, f"\\u{ord(letter):04x}")
            file.write(f'\n<script type="application/json" id="sheet">{data}</script>\n')
            file.write(f"<script>{get_plotlyjs()}</script>\n<script>{PLOTS}</script>")
        file.write(f"\n<script>{TABLES}</script>\n</body>\n</html>\n")


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
    """Where the page's script draws a plot."""
    if not plot.traces:
        return faint(plot.instead)
    return f'<div class="wide"><div class="plot" id="{plot.name}" style="min-width:{plot.least_width}px"></div></div>'


def table(head: str, rows: Iterable[str]) -> str:
    """The page's script lets the reader sort it by the last row of its head."""
    lines = "\n".join(rows)
    return f'<div class="wide" tabindex="0"><table><thead>{head}</thead><tbody>\n{lines}\n</tbody></table></div>'


def table_of_words(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th class="words">{safe(head)}</th>' for head in heads)
    lines = []
    for first, *others in rows:
        cells = "".join(f'<td class="words">{safe(cell)}</td>' for cell in others)
        lines.append(f"<tr><th>{safe(first)}</th>{cells}</tr>")
    return table(f"<tr>{head}</tr>", lines)


def time_of(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
