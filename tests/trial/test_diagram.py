"""Reliability diagrams as a file, and the numbers in their bars."""

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.trial import diagram
from fpp_sweep.trial.diagram import reliability_panels


def made(confidence, labels):
    """Two classes; class 0 is predicted with these confidences."""
    probabilities = np.array([[value, 1 - value] for value in confidence], np.float32)
    return Predictions.of([str(i) for i in range(len(labels))], np.array(labels), probabilities)


FOUR = made([0.8125, 0.8125, 0.84375, 1.0], [0, 1, 1, 0])


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn."""
    drawn = []
    save = diagram._save
    monkeypatch.setattr(diagram, "_save", lambda figure, path: drawn.append(figure) or save(figure, path))
    return drawn


@pytest.mark.parametrize("count", [1, 4, 5, 7])
def test_the_file_is_a_picture_with_a_panel_for_each_dataset(tmp_path, figures, count):
    reliability_panels({f"dataset {i}": FOUR for i in range(count)}, tmp_path / "a.png", title="trial-0003")
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG"
        assert min(image.size) > 200
        assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 100
    panels = [axes.get_title() for axes in figures[0].axes if axes.axison]
    assert panels == [f"dataset {i}\naccuracy 50.00 %  ECE 36.72 %" for i in range(count)]
    assert figures[0].get_suptitle() == "trial-0003"


def test_bars_and_gaps_are_accuracy_and_confidence():
    axes = Figure().subplots()
    diagram._draw_bins(axes, FOUR)
    bars = [(bar.get_x(), bar.get_y(), bar.get_height()) for bar in axes.patches]
    mean = (2 * 0.8125 + 0.84375) / 3
    expected = [(0.8, 0, 1 / 3), (0.95, 0, 1), (0.8, 1 / 3, mean - 1 / 3), (0.95, 1, 0)]
    np.testing.assert_allclose(bars, expected, atol=1e-7)


@pytest.mark.parametrize("title", ["a $x$", r"broken $\frac{$", r"50 % \$ {_^", "", "one " * 60])
def test_a_title_is_never_a_formula(tmp_path, title):
    reliability_panels({title: FOUR}, tmp_path / "a.png", title=title)
    assert (tmp_path / "a.png").stat().st_size > 0


@pytest.mark.parametrize(
    "predictions",
    [made([1.0], [0]), made([0.5], [1]), Predictions.of(["a"], np.array([0]), np.zeros((1, 2), np.float32))],
)
def test_a_single_sample_is_drawn(tmp_path, predictions):
    reliability_panels({"one": predictions}, tmp_path / "a.png", title="one")
    assert (tmp_path / "a.png").exists()


def test_equal_predictions_give_equal_bytes_and_replace_the_old_file(tmp_path):
    (tmp_path / "b.png").write_text("old")
    for name in ("a", "b"):
        reliability_panels({"same": FOUR}, tmp_path / f"{name}.png", title="same")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    (tmp_path / "a.png").mkdir()  # the finished file cannot take this name
    with pytest.raises(OSError, match=r"a\.png"):
        reliability_panels({"fails": FOUR}, tmp_path / "a.png", title="fails")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_matplotlib_is_loaded_only_to_draw_and_pyplot_never(tmp_path):
    code = f"""
import sys
from pathlib import Path
import numpy as np
from fpp_sweep.trial.diagram import reliability_panels
from fpp_sweep.core.metrics import Predictions
assert "matplotlib" not in sys.modules
made = Predictions.of(["a"], np.array([0]), np.array([[0.75, 0.25]], np.float32))
reliability_panels({{"one": made}}, Path({str(tmp_path / "a.png")!r}), title="one")
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
