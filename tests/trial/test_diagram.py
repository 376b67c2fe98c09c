"""Reliability diagrams: the file, and the numbers that the bars show."""

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.trial import diagram
from fpp_sweep.trial.diagram import Panel, reliability_panels


def predictions_of(confidence, labels):
    """Return predictions among two classes in which class 0 has these probabilities."""
    probabilities = np.array([[value, 1 - value] for value in confidence], np.float32)
    return Predictions.of([str(i) for i in range(len(labels))], np.array(labels), probabilities)


FOUR = predictions_of([0.8125, 0.8125, 0.84375, 1.0], [0, 1, 1, 0])


@pytest.fixture
def figures(monkeypatch):
    """Return the list to which every written figure is added."""
    written = []
    save = diagram._save

    def save_and_record(figure, path):
        written.append(figure)
        save(figure, path)

    monkeypatch.setattr(diagram, "_save", save_and_record)
    return written


@pytest.mark.parametrize("count", [1, 4, 5, 7])
def test_the_picture_has_a_panel_for_each_dataset(tmp_path, figures, count):
    reliability_panels({f"dataset {i}": FOUR for i in range(count)}, tmp_path / "a.png", title="trial-0003")
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG"
        assert min(image.size) > 200
        assert image.mode == "P"  # a palette takes two fifths of the space
        assert len(image.getcolors()) > 30
    texts = [text.get_text() for text in figures[0].axes[0].texts]
    panels = [f"dataset {i}, 4 images\naccuracy 50.00 %  ECE 36.72 %" for i in range(count)]
    assert [text for text in texts if "ECE" in text] == panels
    assert texts[0] == "trial-0003"
    (legend,) = figures[0].legends
    assert 0 < legend.get_window_extent().x0 < legend.get_window_extent().x1 < figures[0].bbox.width


def drawn_corners(label):
    """Return the corners of the shapes with this label, as shares of a panel's side."""
    axes = Figure().subplots()
    Panel(axes, left=1.0, bottom=2.0).draw(FOUR, "four")
    (collection,) = [collection for collection in axes.collections if collection.get_label() == label]
    corners = 2 if "95" in label else 4
    return [(path.vertices[:corners] - (1.0, 2.0)) / diagram.SIDE for path in collection.get_paths()]


def test_bars_show_accuracy_and_gaps_confidence_and_intervals_contain_the_accuracy():
    mean = (2 * 0.8125 + 0.84375) / 3
    for label, first, last in (("accuracy", (0, 1 / 3), (0, 1)), ("gap to confidence", (1 / 3, mean), (1, 1))):
        expected = []
        for left, (low, high) in ((0.8, first), (0.95, last)):
            expected.append([(left, low), (left + 0.05, low), (left + 0.05, high), (left, high)])
        np.testing.assert_allclose(drawn_corners(label), expected, atol=1e-7)
    intervals = drawn_corners("95 % of accuracy")
    np.testing.assert_allclose([line[:, 0] for line in intervals], [[0.825] * 2, [0.975] * 2], atol=1e-7)
    low, high = diagram.wilson_interval(np.array([1, 1]), np.array([3, 1]))
    np.testing.assert_allclose([line[:, 1] for line in intervals], np.stack([low, high], axis=1), atol=1e-7)


def test_the_number_of_images_of_each_bin_is_shown_below_a_panel():
    axes = Figure().subplots()
    Panel(axes, left=0.0, bottom=0.0).draw(FOUR, "four")
    depths = [path.vertices[:, 1].max() - path.vertices[:, 1].min() for path in axes.collections[-1].get_paths()]
    assert depths[0] / depths[1] == pytest.approx(3)


@pytest.mark.parametrize("title", ["a $x$", r"broken $\frac{$", r"50 % \$ {_^", "", "one " * 60])
def test_a_title_is_never_a_formula(tmp_path, title):
    reliability_panels({title: FOUR}, tmp_path / "a.png", title=title)
    assert (tmp_path / "a.png").stat().st_size > 0


@pytest.mark.parametrize(
    "predictions",
    [
        predictions_of([1.0], [0]),
        predictions_of([0.5], [1]),
        Predictions.of(["a"], np.array([0]), np.zeros((1, 2), np.float32)),
    ],
)
def test_a_single_sample_is_drawn(tmp_path, predictions):
    reliability_panels({"one": predictions}, tmp_path / "a.png", title="one")
    assert (tmp_path / "a.png").exists()


def test_equal_predictions_give_equal_bytes(tmp_path):
    (tmp_path / "b.png").write_text("old")
    for name in ("a", "b"):
        reliability_panels({"same": FOUR}, tmp_path / f"{name}.png", title="same")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_failed_write_leaves_no_partial_file(tmp_path):
    (tmp_path / "a.png").mkdir()  # the finished file cannot take this name
    with pytest.raises(OSError, match=r"a\.png"):
        reliability_panels({"fails": FOUR}, tmp_path / "a.png", title="fails")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_pyplot_is_never_loaded(tmp_path):
    """Pyplot would choose a window system and keep every figure in memory."""
    code = f"""
import sys
from pathlib import Path
import numpy as np
from fpp_sweep.trial.diagram import reliability_panels
from fpp_sweep.core.metrics import Predictions
predictions = Predictions.of(["a"], np.array([0]), np.array([[0.75, 0.25]], np.float32))
reliability_panels({{"one": predictions}}, Path({str(tmp_path / "a.png")!r}), title="one")
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
