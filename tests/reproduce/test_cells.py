"""Cells of a table: our numbers, the printed numbers and their differences, in all output formats."""

import csv
import io
import math
from dataclasses import replace

import numpy as np
import pytest

from fpp_sweep.core.datasets import expand
from fpp_sweep.reproduce.claims import judge_claims
from fpp_sweep.reproduce.experiments import AVERAGE, PrintedNumber, find, shipped
from fpp_sweep.reproduce.output import as_csv, as_text, write_table
from fpp_sweep.reproduce.tables import WITHOUT, ResultCell
from tests.kit.experiments import result_from_stats, two_seed_result, write_experiment
from tests.kit.measured import World

SETS = ("dtd", "eurosat", "pets")
MAIN = find("main")


def metrics(accuracy, ece, sce=1.0, step=0.2):
    """Return a function of dataset and seed; its metrics grow by `step` with each seed and by 1 with each dataset."""

    def numbers_of(name, seed):
        shift = SETS.index(name) if name in SETS else 0
        return {"accuracy": accuracy + shift + step * seed, "ece": ece + step * seed, "sce": sce}

    return numbers_of


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    results = {
        "zero_shot": two_seed_result(SETS, metrics(44.0, 8.0)),
        "tpt": two_seed_result(SETS, metrics(46.6, 21.0)),
        "otpt": "FloatingPointError: logits are not finite",
        "fpp": two_seed_result(SETS, metrics(46.0, 7.4)),
    }
    return write_experiment(tmp_path_factory.mktemp("main"), MAIN, SETS, results)


def test_a_cell_has_the_mean_over_seeds_and_their_spread(table):
    cell = table.cell(("tpt", ""), "accuracy", "dtd")
    assert (cell.value, cell.printed.text) == (pytest.approx(46.7), "46.7")
    assert cell.deviation == pytest.approx(0.2 / math.sqrt(2))
    assert cell.difference == pytest.approx(0)
    assert cell.printed.rounding == 0.05


def test_averages_are_with_and_without_eurosat(table):
    own = ("fpp", "")
    assert tuple(table.scopes) == (*SETS, AVERAGE, WITHOUT)
    assert table.cell(own, "accuracy", AVERAGE).value == pytest.approx(46.1 + 1)
    assert table.cell(own, "accuracy", WITHOUT).value == pytest.approx(46.1 + 1)  # the mean of 46.1 and 48.1
    # all datasets change equally between seeds, so the average has the deviation of a single dataset
    assert table.cell(own, "accuracy", AVERAGE).deviation == pytest.approx(0.2 / math.sqrt(2))


def test_the_average_of_fewer_datasets_is_compared_with_the_printed_numbers_of_these(table):
    """The printed average is of ten datasets: our average of three may be far from it, and yet agree."""
    own = ("fpp", "")
    assert table.cell(own, "ece", AVERAGE).printed.value == pytest.approx((7.52 + 5.19 + 2.63) / 3)
    assert table.cell(own, "ece", WITHOUT).printed.value == pytest.approx((7.52 + 2.63) / 2)


def test_the_average_of_all_datasets_is_compared_with_the_printed_average(tmp_path):
    datasets = expand("fine_grained")
    table = write_experiment(tmp_path, MAIN, datasets, {"fpp": two_seed_result(datasets, metrics(46.0, 7.4))})
    assert table.cell(("fpp", ""), "ece", AVERAGE).printed.text == "4.13"
    assert table.cell(("fpp", ""), "ece", WITHOUT).printed.value == pytest.approx(4.01, abs=0.005)


@pytest.mark.parametrize(
    ("value", "deviation", "verdict"),
    [
        (4.13, 0.0, "agrees"),
        (4.1349, 0.0, "agrees"),
        (4.14, 0.0, "differs"),
        # the limit is t (two degrees of freedom): 4.303 sqrt(1 + 1/3) = 4.969 deviations, plus the rounding error
        (4.13 + 0.4968 + 0.005, 0.1, "agrees"),
        (4.13 + 0.4970 + 0.005, 0.1, "differs"),
        (4.13, None, ""),
    ],
)
def test_a_number_differs_from_the_printed_one_by_a_t_test_over_seeds(value, deviation, verdict):
    cell = ResultCell(value=value, deviation=deviation, seeds=3, printed=PrintedNumber.of_text("4.13"))
    assert cell.verdict == verdict


def test_one_true_cell_in_twenty_differs_by_chance():
    """Our number is a mean over three seeds, and the printed number comes from one run."""
    generator = np.random.default_rng(0)
    differing = 0
    for _ in range(2000):
        ours, printed = generator.standard_normal(3), generator.standard_normal()
        number = PrintedNumber("", float(printed), 0.0)
        cell = ResultCell(value=float(ours.mean()), deviation=float(ours.std(ddof=1)), seeds=3, printed=number)
        differing += cell.verdict == "differs"
    assert 70 <= differing <= 130


def test_numbers_of_another_model_are_not_compared(tmp_path):
    table = write_experiment(tmp_path, MAIN, SETS, {"tpt": two_seed_result(SETS, metrics(46.6, 21.0))}, model="tiny")
    cell = table.cell(("tpt", ""), "accuracy", "dtd")
    assert (cell.printed.text, cell.difference, cell.verdict) == ("46.7", None, "")
    text = as_text(table)
    assert "other model" in text
    assert "\n  difference" not in text
    assert "other model" in as_csv(table)


def test_deviations_and_costs_have_separate_columns(tmp_path):
    seeds, costs = find("seeds"), find("costs")
    datasets = ("caltech101", "cars", "dtd", "flowers102", "food101")  # of the table
    moved = {"fpp": two_seed_result(datasets, metrics(46.0, 7.4))}
    table = write_experiment(tmp_path / "seeds", seeds, datasets, moved)
    cell = table.cell(("fpp", ""), seeds.columns[0].name, AVERAGE)
    assert cell.value == pytest.approx(0.2 / math.sqrt(2))
    assert cell.printed.text == "0.13"
    seconds = {"eurosat": {"pretrain": 9.0, "adapt": 100.0}, "sun397": {"pretrain": 300.0, "adapt": 900.0}}
    stats = World(64, datasets=tuple(seconds)).block_stats(0.6, 0.1, seeds=(0, 1))
    spent = {"fpp": replace(result_from_stats(stats), costs=seconds)}
    table = write_experiment(tmp_path / "costs", costs, tuple(seconds), spent, stats={"fpp": stats})
    cell = table.cell(("fpp", ""), costs.columns[0].name, "sun397")
    assert (cell.value, cell.printed.text, cell.verdict) == (300.0, "621", "")


def test_precision_is_an_axis_of_the_grid_and_claims_are_about_the_first(tmp_path):
    results = {
        ("zero_shot", "float32"): two_seed_result(SETS, metrics(44.0, 8.0)),
        ("fpp", "float32"): two_seed_result(SETS, metrics(46.0, 7.4)),
        ("zero_shot", "fp16"): two_seed_result(SETS, metrics(44.0, 8.0)),
        ("fpp", "fp16"): two_seed_result(SETS, metrics(43.0, 7.4)),
    }
    experiment = replace(MAIN, precisions=("fp16", "float32"))
    (block, *_) = experiment.space(overrides=["work.datasets=[dtd]"], checkpoints={}).grid
    assert block["precision"] == ("fp16", "float32")
    table = write_experiment(tmp_path, experiment, SETS, results)
    assert [table.cell(("fpp", precision), "accuracy", "dtd").value for precision in experiment.precisions] == [
        pytest.approx(43.1), pytest.approx(46.1)
    ]  # fmt: skip
    rows = csv.DictReader(io.StringIO(as_csv(table)))
    ours = {(line["row"], line["precision"]) for line in rows if line["ours"]}
    assert ours == set(results)
    text = as_text(table)
    assert text.index("FPP, fp16") < text.index("FPP, float32")
    assert judge_claims(table)[0].numbers.startswith("-1.00")


def test_every_cell_is_a_line_of_the_csv(table):
    rows = list(csv.DictReader(io.StringIO(as_csv(table))))
    cells = {(line["row"], line["column"], line["dataset"]): line for line in rows}
    assert len(cells) == len(rows) == len(table.cells) == 5 * 3 * len(table.scopes)
    assert cells["tpt", "accuracy", "dtd"]["ours"] == "46.7"
    assert cells["tpt", "accuracy", "dtd"]["verdict"] == "agrees"
    assert cells["fpp", "ece", AVERAGE]["verdict"] == "differs"
    assert float(cells["fpp", "ece", AVERAGE]["difference"]) == pytest.approx(7.5 - 5.11, abs=0.005)


def test_a_number_of_fewer_images_than_the_printed_one_is_not_judged(tmp_path):
    """The test is about seeds on the same images; the images that --limit leaves out have a part in the difference."""
    limited = write_experiment(tmp_path, MAIN, SETS, {"tpt": two_seed_result(SETS, metrics(40.0, 21.0))}, limit=200)
    assert limited.cell(("tpt", ""), "accuracy", "dtd").verdict == ""
    assert "(fewer images)" in as_text(limited)


def test_a_table_is_written_as_csv_markdown_and_latex_in_utf_8_in_any_locale(table, tmp_path, ascii_locale):
    write_table(tmp_path, table)
    assert {path.name for path in tmp_path.iterdir()} == {"table.csv", "table.md", "table.tex"}
    markdown, latex = [(tmp_path / f"table.{suffix}").read_text("utf-8") for suffix in ("md", "tex")]
    for text in (markdown, latex, as_text(table)):
        assert "model ViT-B-16/openai, datasets dtd, eurosat, pets, seeds 0, 1" in text.replace("\n  ", " ")
        assert "+2.39*" in text
        assert "otpt has no numbers in accuracy, ece, sce: FloatingPointError" in text
    assert "| TPT | 46.70±0.14 |" in markdown
    assert r"TPT & 46.70$\pm$0.14 &" in latex


@pytest.mark.parametrize("name", [name for name in shipped() if name != "init"])  # init needs checkpoints
def test_every_shipped_table_and_figure_is_made_of_results_with_block_statistics(tmp_path, name):
    experiment = find(name)
    datasets = ("eurosat", "sun397")
    stats = World(64, datasets=datasets).block_stats(0.6, 0.1, seeds=(0, 1))
    seconds = {dataset: {"pretrain": 9.0, "adapt": 100.0} for dataset in datasets}
    result = replace(result_from_stats(stats), costs=seconds)
    rows = [row.name for row in experiment.rows]
    table = write_experiment(
        tmp_path / name, experiment, datasets, dict.fromkeys(rows, result), stats=dict.fromkeys(rows, stats)
    )
    assert experiment.title in as_text(table)
