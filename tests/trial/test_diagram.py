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
    texts = [text.get_text() for text in figures[0].axes[0].texts]
    panels = [f"dataset {i}, 4 images\naccuracy 50.00 %  ECE 36.72 %" for i in range(count)]
    assert [text for text in texts if "ECE" in text] == panels
    assert texts[0] == "trial-0003"


def drawn(label):
    """The ends of what has that label, as shares of a panel whose corner is (1, 2): x and y of each corner."""
    axes = Figure().subplots()
    diagram._draw_panel(axes, (1.0, 2.0), FOUR, "four")
    (found,) = [each for each in axes.collections if each.get_label() == label]
    return [(path.vertices[: 2 if "95" in label else 4] - (1.0, 2.0)) / diagram.SIDE for path in found.get_paths()]


def test_bars_and_gaps_are_accuracy_and_confidence_and_bands_hold_the_accuracy():
    mean = (2 * 0.8125 + 0.84375) / 3
    for label, first, last in (("accuracy", (0, 1 / 3), (0, 1)), ("gap to confidence", (1 / 3, mean), (1, 1))):
        expected = [
            [(left, low), (left + 0.05, low), (left + 0.05, high), (left, high)]
            for left, (low, high) in ((0.8, first), (0.95, last))
        ]
        np.testing.assert_allclose(drawn(label), expected, atol=1e-7)
    bands = drawn("95 % of accuracy")
    np.testing.assert_allclose([line[:, 0] for line in bands], [[0.825] * 2, [0.975] * 2], atol=1e-7)
    low, high = diagram.band(np.array([1, 1]), np.array([3, 1]))
    np.testing.assert_allclose([line[:, 1] for line in bands], np.stack([low, high], axis=1), atol=1e-7)


def test_below_a_panel_stands_how_many_images_each_bin_has():
    axes = Figure().subplots()
    diagram._draw_panel(axes, (0.0, 0.0), FOUR, "four")
    depths = [path.vertices[:, 1].max() - path.vertices[:, 1].min() for path in axes.collections[-1].get_paths()]
    assert depths[0] / depths[1] == pytest.approx(3)


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
