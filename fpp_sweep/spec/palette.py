"""Colours, markers and dashes of every figure, on paper and on pages."""

from typing import NamedTuple


class Marker(NamedTuple):
    """A marker by its names in both libraries."""

    matplotlib: str
    plotly: str


# Paul Tol's bright scheme for colour-blind readers; markers, dashes and hatches serve those who print in grey
PALETTE = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#66CCEE", "#CCBB44", "#BBBBBB")
BLUE, RED, GREEN, *_ = PALETTE
GREY = "#8f959e"

CIRCLE, CROSS, TRIANGLE = Marker("o", "circle"), Marker("x", "x"), Marker("v", "triangle-down")
MARKERS = (
    CIRCLE,
    Marker("s", "square"),
    Marker("D", "diamond"),
    Marker("^", "triangle-up"),
    Marker("p", "pentagon"),
    Marker("P", "cross"),
    Marker("*", "star"),
    Marker("X", "x"),
    Marker("h", "hexagon"),
    Marker("d", "diamond-tall"),
)
DASHES = ("-", "--", "-.", ":")  # line styles of matplotlib

# text, grid and background of figures; on a page they follow the reader's theme, see report/assets/page.css
INK, LINE, PAPER = "#1d2127", "#dfe3e8", "#ffffff"
