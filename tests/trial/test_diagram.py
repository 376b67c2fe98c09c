"""The reliability diagram as a file, and the numbers in its bars."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.trial import diagram
from fpp_sweep.trial.diagram import reliability_diagram


def made(confidence: list[float], labels: list[int]) -> Predictions:
    """Two classes; class 0 is predicted with these confidences."""
    probabilities = np.array([[value, 1 - value] for value in confidence], np.float32)
    return Predictions.of([str(i) for i in range(len(labels))], np.array(labels), probabilities)


FOUR = made([0.8125, 0.8125, 0.84375, 1.0], [0, 1, 1, 0])


def test_the_file_is_a_picture_for_a_paper(tmp_path: Path) -> None:
    reliability_diagram(FOUR, tmp_path / "a.png", title="digits, zero-shot")
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG"
        assert image.width >= 700
        assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 100


def test_bars_and_gaps_are_accuracy_and_confidence() -> None:
    axes = Figure().subplots()
    diagram._draw_bins(axes, FOUR)
    bars = [(bar.get_x(), bar.get_y(), bar.get_height()) for bar in axes.patches]  # type: ignore[attr-defined]
    mean = (2 * 0.8125 + 0.84375) / 3
    expected = [(0.8, 0, 1 / 3), (0.95, 0, 1), (0.8, 1 / 3, mean - 1 / 3), (0.95, 1, 0)]
    np.testing.assert_allclose(bars, expected, atol=1e-7)


def test_the_histogram_counts_every_sample() -> None:
    axes = Figure().subplots()
    diagram._draw_histogram(axes, FOUR)
    heights = [bar.get_height() for bar in axes.patches]  # type: ignore[attr-defined]
    assert heights == [0] * 16 + [3, 0, 0, 1]


def test_the_title_tells_accuracy_and_error() -> None:
    figure = Figure()
    diagram._draw_title(figure, FOUR, "digits")
    assert figure.get_suptitle() == "digits\naccuracy 50.00 %   ECE 36.72 %   n = 4"


@pytest.mark.parametrize("title", ["a $x$", r"broken $\frac{$", r"50 % \$ {_^", "", "one " * 60])
def test_a_title_is_never_a_formula(tmp_path: Path, title: str) -> None:
    reliability_diagram(FOUR, tmp_path / "a.png", title=title)
    assert (tmp_path / "a.png").stat().st_size > 0


@pytest.mark.parametrize(
    "predictions",
    [made([1.0], [0]), made([0.5], [1]), Predictions.of(["a"], np.array([0]), np.zeros((1, 2), np.float32))],
)
def test_a_single_sample_is_drawn(tmp_path: Path, predictions: Predictions) -> None:
    reliability_diagram(predictions, tmp_path / "a.png", title="one")
    assert (tmp_path / "a.png").exists()


def test_equal_predictions_give_equal_bytes_and_replace_the_old_file(tmp_path: Path) -> None:
    reliability_diagram(FOUR, tmp_path / "a.png", title="same")
    (tmp_path / "b.png").write_text("old")
    reliability_diagram(FOUR, tmp_path / "b.png", title="same")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()  # the finished file cannot take this name
    with pytest.raises(OSError, match=r"a\.png"):
        reliability_diagram(FOUR, tmp_path / "a.png", title="fails")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_matplotlib_is_loaded_only_to_draw_and_pyplot_never(tmp_path: Path) -> None:
    code = f"""
import sys
import numpy as np
from fpp_sweep.trial.diagram import reliability_diagram
from fpp_sweep.core.metrics import Predictions
assert "matplotlib" not in sys.modules
made = Predictions.of(["a"], np.array([0]), np.array([[0.75, 0.25]], np.float32))
reliability_diagram(made, {str(tmp_path / "a.png")!r}, title="one")
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
