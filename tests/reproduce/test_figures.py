"""Figures: their numbers, computed by hand, and their files, which embed fonts and are reproducible."""

import csv
import io
import math
from dataclasses import replace

import pytest
from PIL import Image

from fpp_sweep.reproduce.experiments import ExperimentFigure, find, load
from fpp_sweep.reproduce.figures import figure_of, write_figure
from tests.kit.experiments import two_seed_result, write_experiment, write_predictions
from tests.kit.long_forms import short_and_long

SETS = ("dtd", "pets")
# ECE of the three groups of dtd by sharpness. Low: images 1 and 3 with confidence 0.9, one of them right: |0.5 - 0.9|.
# Medium: images 5 and 4: the mean of |1 - 0.8| and |0 - 0.3|. High: images 2 and 0 with confidence 0.6, both right.
DTD = {
    "sharpness": [0.6, 0.1, 0.5, 0.2, 0.4, 0.3],
    "confidence": [0.6, 0.9, 0.6, 0.9, 0.3, 0.8],
    "correct": [1, 1, 1, 0, 0, 1],
}
RELIABILITY = ExperimentFigure(kind="reliability")
PETS = {"sharpness": [3.0, 1.0, 2.0], "confidence": [1.0, 1.0, 1.0], "correct": [0, 1, 1]}


EVERY_FIGURE = ["flatness_ece", "sharpness_groups", "reliability", "lambda", "variance_class", "variance_context"]


def write_experiment_with_samples(path, name, rows=("tpt", "fpp"), **changes):
    """Write an experiment with samples of two seeds; return its table."""

    def metrics(index):
        return lambda name, seed: {"accuracy": 50.0 + index, "ece": 8.0 - index + seed, "sharpness": 1.0 + index + seed,
                                   "sce": 1.0, **changes}  # fmt: skip

    experiment = find(name)
    table = write_experiment(
        path, experiment, SETS, {row: two_seed_result(SETS, metrics(index)) for index, row in enumerate(rows)}
    )
    for number in range(len(rows)):
        for seed in (0, 1):
            write_predictions(table.sweep, f"trial-{number:04d}", "dtd", seed, **DTD)
            write_predictions(table.sweep, f"trial-{number:04d}", "pets", seed, **PETS)
    return table


def figure_lines(table):
    return list(csv.DictReader(io.StringIO((table.sweep.report / "figure.csv").read_text())))


@pytest.mark.parametrize("name", short_and_long(EVERY_FIGURE, lambda name: name == "lambda"))
def test_every_figure_embeds_its_fonts_and_is_reproducible(tmp_path, name):
    experiment = find(name)
    table = write_experiment_with_samples(tmp_path, name, [row.name for row in experiment.rows][:3])
    write_figure(table)
    Image.open(table.sweep.report / "figure.png").verify()
    document = (table.sweep.report / "figure.pdf").read_bytes()
    assert b"/FontFile2" in document
    assert b"/Type3" not in document
    assert figure_lines(table)
    again = figure_of(table)
    assert again.to_bytes("pdf") == document
    assert again.to_svg() == again.to_svg()
    assert again.to_svg().startswith('<svg role="img" aria-label="')
    assert "<style" not in again.to_svg()
    assert "var(--ink)" in again.to_svg()


def test_groups_are_thirds_of_each_dataset_by_sharpness_then_averaged(tmp_path):
    table = write_experiment_with_samples(tmp_path, "sharpness_groups")
    write_figure(table)
    own = {(line["dataset"], line["group"]): line for line in figure_lines(table) if line["row"] == "fpp"}
    assert [float(own["dtd", group]["ece"]) for group in ("low", "medium", "high")] == pytest.approx([40, 25, 40])
    assert [float(own["pets", group]["ece"]) for group in ("low", "medium", "high")] == [0, 0, 100]
    assert [float(own["average", group]["ece"]) for group in ("low", "medium", "high")] == pytest.approx([20, 12.5, 70])
    assert [float(own["average", group]["sharpness"]) for group in ("low", "medium", "high")] == pytest.approx(
        [(0.15 + 1) / 2, (0.35 + 2) / 2, (0.55 + 3) / 2]
    )
    assert {own["dtd", group]["samples"] for group in ("low", "medium", "high")} == {"2"}


def test_reliability_pools_the_seeds_of_each_dataset(tmp_path):
    table = write_experiment_with_samples(tmp_path, "main")
    figure = figure_of(replace(table, experiment=replace(table.experiment, figure=RELIABILITY)))
    lines = figure.data.to_dict("records")
    assert {(line["row"], line["dataset"]) for line in lines} == {
        ("tpt", "dtd"),
        ("tpt", "pets"),
        ("fpp", "dtd"),
        ("fpp", "pets"),
    }
    bins = {}
    for line in lines:
        bins.setdefault((line["row"], line["dataset"]), {})[round(line["high"], 2)] = line
    pets, dtd = bins["tpt", "pets"], bins["tpt", "dtd"]
    assert len(pets) == len(dtd) == 20
    assert sum(line["samples"] for line in pets.values()) == 2 * 3
    assert sum(line["samples"] for line in dtd.values()) == 2 * 6
    assert (pets[1.0]["samples"], pets[1.0]["confidence"]) == (6, 1)
    assert pets[1.0]["accuracy"] == pytest.approx(2 / 3)
    assert dtd[0.5]["samples"] == 0
    assert math.isnan(dtd[0.5]["accuracy"])
    assert (dtd[0.9]["samples"], dtd[0.9]["accuracy"]) == (4, 0.5)


def test_a_scatter_has_a_point_for_each_row_and_dataset_and_their_mean(tmp_path):
    table = write_experiment_with_samples(tmp_path, "flatness_ece")
    write_figure(table)
    points = {
        (line["row"], line["dataset"]): (float(line["sharpness"]), float(line["ece"])) for line in figure_lines(table)
    }
    assert points == {
        **{("tpt", column): (1.5, 8.5) for column in (*SETS, "mean")},
        **{("fpp", column): (2.5, 7.5) for column in (*SETS, "mean")},
    }
    scatter = figure_of(table)
    assert "Over all 4 points, ECE: Pearson r -1.00, Spearman rho -1.00." in scatter.caption
    for title in ("TPT", "FPP"):  # the legend
        assert scatter.to_svg().count(f">{title}<") == 1


def test_lines_have_the_deviation_over_seeds_and_rules_are_horizontal_lines(tmp_path):
    table = write_experiment_with_samples(tmp_path, "lambda", ("lambda_0", "lambda_2", "rule_15"))
    write_figure(table)
    points = {(line["row"], line["column"]): line for line in figure_lines(table)}
    ece = points["lambda_2", "ece"]
    assert (ece["fpp.gamma1"], ece["fpp.gamma2"], float(ece["value"])) == ("2", "0", 7.5)
    assert float(ece["deviation"]) == pytest.approx(0.5**0.5, abs=1e-5)
    picture = figure_of(table).to_svg()
    assert "fpp.gamma2 = 0" in picture
    assert "1 + 15 / K" in picture
    assert "fpp.gamma2 = 15" not in picture


@pytest.mark.parametrize("name", ["flatness_ece", "sharpness_groups", "reliability", "lambda"])
def test_without_numbers_and_samples_there_is_no_figure(tmp_path, name):
    table = write_experiment(tmp_path, find(name), SETS, {})
    write_figure(table)
    assert not (tmp_path / "report").exists()


def test_texts_of_figures_are_escaped_and_drawn_literally(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "columns: [ece]\nfigure: {kind: lines, x: fpp.gamma1, y: [ece]}\n"
        "rows: [{name: a, title: '</svg><script>$x^2$ 🙂', set: {method: tpt, prompt: a photo of a}}]\n"
    )
    experiment = load(file)
    table = write_experiment(
        tmp_path / "mine", experiment, SETS, {"a": two_seed_result(SETS, lambda name, seed: {"ece": 1.0})}
    )
    drawing = figure_of(table)
    assert "&lt;/svg&gt;&lt;script&gt;$x^2$ 🙂" in drawing.to_svg()
    Image.open(io.BytesIO(drawing.to_bytes("png"))).verify()


def test_a_figure_of_an_unknown_column_is_refused_with_its_line(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("columns: [ece]\nrows: [{name: a}]\nfigure: {kind: scatter, x: sharpnes, y: [ece]}\n")
    with pytest.raises(ValueError, match=r"mine.yaml:3: figure: unknown column 'sharpnes'"):
        load(file)
