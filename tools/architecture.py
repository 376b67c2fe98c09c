"""Draw the picture of the architecture, light and dark: `python -m tools.architecture`."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "images"
WIDTH, HEIGHT = 880, 475


@dataclass(frozen=True)
class Theme:
    """Colours of a picture."""

    name: str
    background: str
    text: str
    faint: str
    line: str
    fill: str
    accent: str


THEMES = (
    Theme("light", "#ffffff", "#1f2328", "#57606a", "#8c959f", "#f6f8fa", "#dbeafe"),
    Theme("dark", "#0d1117", "#e6edf3", "#9da7b3", "#6e7681", "#161b22", "#12304f"),
)


@dataclass(frozen=True)
class Box:
    """A rectangle with a title and lines of text."""

    x: int
    y: int
    width: int
    height: int
    title: str
    lines: tuple[str, ...]
    accent: bool = False


BOXES = (
    Box(20, 20, 230, 90, "Space file, command line", ("searched settings, objectives,", "data, budget", "space/ cli/")),
    Box(
        310,
        20,
        250,
        90,
        "Driver",
        ("Optuna chooses points, Ray Tune runs", "trials; final stage", "sweep/ search/"),
        accent=True,
    ),
    Box(
        20,
        165,
        230,
        90,
        "Trials",
        ("cut a config into tasks, merge", "results, score them, stop early", "trial/ search/"),
    ),
    Box(
        310,
        165,
        250,
        90,
        "Scheduler",
        ("hands tasks to workers, stores results", "by key, retries lost tasks", "workers/"),
    ),
    Box(
        620,
        165,
        240,
        90,
        "Workers, one per GPU",
        ("CLIP, image features, pretraining,", "adaptation, metrics", "core/"),
    ),
    Box(
        20,
        310,
        540,
        145,
        "sweeps/NAME/",
        (
            "records, Optuna study, results by key, prompts, predictions, logs",
            "Every step is written here first. --resume continues from it,",
            "and it can be copied and sent.",
            "records/",
        ),
        accent=True,
    ),
    Box(620, 310, 240, 72, "Results", ("answer, page, tables, comparisons", "report/ statistics/")),
    Box(620, 392, 240, 63, "MLflow", ("a copy, brought up to date; tracking/",)),
)

ARROWS = (  # x1, y1, x2, y2, and whether the arrow has two heads
    (250, 65, 310, 65, False),
    (345, 110, 215, 165, True),
    (435, 110, 435, 165, False),
    (250, 210, 310, 210, True),
    (560, 210, 620, 210, True),
    (135, 255, 135, 310, False),
    (435, 255, 435, 310, True),
    (560, 346, 620, 346, False),
    (560, 424, 620, 424, False),
)


def box_svg(box: Box, theme: Theme) -> str:
    fill = theme.accent if box.accent else theme.fill
    parts = [
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="8" fill="{fill}" '
        f'stroke="{theme.line}"/>',
        f'<text x="{box.x + 14}" y="{box.y + 26}" fill="{theme.text}" font-weight="600">{escape(box.title)}</text>',
    ]
    for number, line in enumerate(box.lines):
        y = box.y + 46 + 17 * number
        parts.append(f'<text x="{box.x + 14}" y="{y}" fill="{theme.faint}" font-size="12">{escape(line)}</text>')
    return "\n".join(parts)


def arrow_svg(arrow: tuple[int, int, int, int, bool], theme: Theme) -> str:
    x1, y1, x2, y2, both_ways = arrow
    start = ' marker-start="url(#head)"' if both_ways else ""
    return f'<path d="M{x1} {y1} L{x2} {y2}" stroke="{theme.line}" stroke-width="1.5"{start} marker-end="url(#head)"/>'


def picture(theme: Theme) -> str:
    """Return the SVG in the colours of a theme."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="15" role="img" aria-label="Architecture of fpp_sweep">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="{theme.line}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{theme.background}"/>',
    ]
    parts.extend(arrow_svg(arrow, theme) for arrow in ARROWS)
    parts.extend(box_svg(box, theme) for box in BOXES)
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    for theme in THEMES:
        (FOLDER / f"architecture-{theme.name}.svg").write_text(picture(theme), encoding="utf-8")


if __name__ == "__main__":
    main()
