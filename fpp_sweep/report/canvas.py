"""Drawn figures: as PNG and PDF, and as SVG inside a page. matplotlib is imported when it draws: a second."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fpp_sweep.report.theme import INK, LINE, PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

RC: Any = {
    "pdf.fonttype": 42,  # fonts embedded whole, so that text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "fpp_sweep",
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "text.parse_math": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "grid.color": LINE,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), PAPER),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure that can be drawn."""

    kind: str
    caption: str
    data: Sequence[Mapping[str, Any]]  # the lines of its CSV
    draw: Callable[[Canvas], None]

    def saved(self, kind: str) -> bytes:
        """As `png`, `pdf` or `svg`; equal inputs give equal bytes."""
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas

        nameless: dict[str, Any] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}.get(
            kind, {"CreationDate": None, "Creator": None, "Producer": None}
        )
        file = io.BytesIO()
        with mpl.rc_context(RC), warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Glyph \d+")  # a title with emoji is drawn with boxes
            canvas = Canvas(dpi=150, layout="constrained")
            self.draw(canvas)
            handles, labels = canvas.axes[0].get_legend_handles_labels()
            canvas.legend(handles, labels, loc="outside lower center", ncols=4)
            canvas.savefig(file, format=kind, metadata=nameless)
        return file.getvalue()

    def inline(self) -> str:
        """SVG for a page, in whose colours it is drawn."""
        text = self.saved("svg").decode()
        text = re.sub(
            r"<style.*?</style>|<metadata>.*?</metadata>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.S
        )
        text = re.sub(r' id="[A-Za-z]\w*_\d{1,4}"', "", text)  # matplotlib's names of parts, which nothing refers to
        for colour, name in ((INK, "ink"), (LINE, "line"), (PAPER, "paper")):
            text = text.replace(colour, f"var(--{name})")
        return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(self.caption)}" ', 1)
