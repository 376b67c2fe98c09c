"""A table's cells: our numbers, the printed ones, what is said of their difference, and how it is written out."""

import csv
import io
import math

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report.document import document_to_latex, document_to_markdown
from fpp_sweep.reproduce.cells import SPREAD, WITHOUT, Cell
from fpp_sweep.reproduce.experiments import AVERAGE, find
from fpp_sweep.reproduce.output import as_csv, as_text, table_document
from fpp_sweep.reproduce.running import drop_failed
from tests.reproduce.made import ran, result

SETS = ("dtd", "eurosat", "pets")
MAIN = find("main")
ACCURACY, ECE, SCE = MAIN.columns


def metrics(accuracy, ece, sce=1.0, step=0.2):
    """Numbers that move by `step` from seed to seed, and by dataset."""

    def of(name, seed):
        shift = SETS.index(name) if name in SETS else 0
        return {"accuracy": accuracy + shift + step * seed, "ece": ece + step * seed, "sce": sce}

    return of


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    found = {
        "zero_shot": result(SETS, metrics(44.0, 8.0)),
        "tpt": result(SETS, metrics(46.6, 21.0)),
        "otpt": "FloatingPointError: logits are not finite",
        "fpp": result(SETS, metrics(46.0, 7.4)),
    }
    return ran(tmp_path_factory.mktemp("main"), MAIN, SETS, found)


def row(table, name):
    return next(row for row in table.experiment.rows if row.name == name)


def test_a_cell_has_the_mean_over_seeds_and_their_spread(table):
    cell = table.of(row(table, "tpt"), ACCURACY, "dtd")
    assert (cell.value, cell.printed) == (pytest.approx(46.7), 46.7)
    assert cell.deviation == pytest.approx(0.2 / math.sqrt(2))
    assert cell.difference == pytest.approx(0)
    assert cell.rounding == 0.05


def test_averages_are_with_and_without_eurosat(table):
    own = row(table, "fpp")
    assert table.places == (*SETS, AVERAGE, WITHOUT)
    assert table.of(own, ACCURACY, AVERAGE).value == pytest.approx(46.1 + 1)
    assert table.of(own, ACCURACY, WITHOUT).value == pytest.approx(46.1 + 1)  # of 46.1 and 48.1
    assert table.of(own, ECE, AVERAGE).printed == 4.13
    assert table.of(own, ECE, WITHOUT).printed == pytest.approx(4.01, abs=0.005)
    # all move together from seed to seed, so that the average moves as much as each
    assert table.of(own, ACCURACY, AVERAGE).deviation == pytest.approx(0.2 / math.sqrt(2))


@pytest.mark.parametrize(
    ("value", "deviation", "verdict"),
    [(4.13, 0.0, "agrees"), (4.1349, 0.0, "agrees"), (4.14, 0.0, "differs"), (4.40, 0.1, "agrees"),
     (4.13 + SPREAD * 0.1 + 0.006, 0.1, "differs"), (4.13, None, "")],
)  # fmt: skip
def test_a_difference_counts_beyond_what_seeds_and_rounding_explain(value, deviation, verdict):
    assert Cell(value=value, deviation=deviation, printed=4.13, rounding=0.005).verdict == verdict


def test_another_models_numbers_are_not_compared(tmp_path):
    table = ran(tmp_path, MAIN, SETS, {"tpt": result(SETS, metrics(46.6, 21.0))}, model="tiny")
    cell = table.of(row(table, "tpt"), ACCURACY, "dtd")
    assert (cell.printed, cell.difference, cell.verdict) == (46.7, None, "")
    text = as_text(table)
    assert "other model" in text
    assert "\n  difference" not in text
    assert "other model" in as_csv(table)


def test_claims_are_judged_by_our_own_numbers(table):
    judged = {claim.says: claim for claim in table.judged}
    assert judged["TPT is more accurate than zero-shot"].verdict == "holds"
    assert judged["TPT is more accurate than zero-shot"].numbers == "+2.60 ± 0.40"
    assert judged["TPT is worse calibrated than zero-shot"].verdict == "holds"
    # better than zero-shot and TPT in ECE; O-TPT and C-TPT have no numbers
    assert judged["FPP has the lowest ECE on average"].verdict == "holds"
    assert judged["FPP is the most accurate on average"].verdict == "does not hold; holds in 1 of 2"
    assert judged["C-TPT calibrates better than TPT"].verdict == "not run"


def test_a_difference_within_the_spread_is_not_told_apart(tmp_path):
    found = {"zero_shot": result(SETS, metrics(44.0, 8.0)), "tpt": result(SETS, metrics(44.1, 8.0))}
    table = ran(tmp_path, MAIN, SETS, found)
    judged = {claim.says: claim.verdict for claim in table.judged}
    assert judged["TPT is more accurate than zero-shot"] == "not told apart"


def test_rows_without_numbers_say_why(table):
    assert table.failed == {"otpt": "FloatingPointError: logits are not finite"}
    assert "otpt has no numbers: FloatingPointError" in as_text(table)


def test_a_table_with_a_failed_row_begins_again_and_another_does_not(tmp_path, capsys):
    good = {"tpt": result(SETS, metrics(46.6, 21.0))}
    for name, found in (("whole", good), ("failed", {**good, "otpt": "out of memory"})):
        ran(tmp_path / name, MAIN, SETS, found)
        drop_failed(SweepFolder(tmp_path / name))
    assert (tmp_path / "whole" / "sweep.json").is_file()
    assert not (tmp_path / "failed").exists()
    assert capsys.readouterr().err == "note: 1 trials failed last time; they are tried again\n"
    drop_failed(SweepFolder(tmp_path / "none"))


def test_deviations_and_costs_have_columns_of_their_own(tmp_path):
    seeds, costs = find("seeds"), find("costs")
    moved = {"fpp": result(("dtd", "pets"), metrics(46.0, 7.4))}
    table = ran(tmp_path / "seeds", seeds, ("dtd", "pets"), moved)
    cell = table.of(row(table, "fpp"), seeds.columns[0], AVERAGE)
    assert cell.value == pytest.approx(0.2 / math.sqrt(2))
    assert cell.printed == 0.13
    seconds = {"eurosat": {"pretrain": 9.0, "adapt": 100.0}, "sun397": {"pretrain": 300.0, "adapt": 900.0}}
    spent = {"fpp": result(("eurosat", "sun397"), metrics(50.0, 5.0), seconds)}
    table = ran(tmp_path / "costs", costs, ("eurosat", "sun397"), spent)
    cell = table.of(row(table, "fpp"), costs.columns[0], "sun397")
    assert (cell.value, cell.printed, cell.verdict) == (300.0, 621.0, "")


def test_every_cell_is_a_line_of_the_csv(table):
    rows = list(csv.DictReader(io.StringIO(as_csv(table))))
    cells = {(one["row"], one["column"], one["dataset"]): one for one in rows}
    assert len(rows) == 5 * 3 * len(table.places)
    assert cells["tpt", "accuracy", "dtd"]["ours"] == "46.7"
    assert cells["tpt", "accuracy", "dtd"]["verdict"] == "agrees"
    assert cells["fpp", "ece", AVERAGE]["verdict"] == "differs"
    assert float(cells["fpp", "ece", AVERAGE]["difference"]) == pytest.approx(3.37)


def test_markdown_and_latex_have_the_same_numbers_and_say_what_was_run(table):
    document = table_document(table)
    markdown, latex = document_to_markdown(document), document_to_latex(document)
    for text in (markdown, latex):
        assert "model ViT-B-16/openai, datasets dtd, eurosat, pets, seeds 0, 1" in text
        assert "fpp.gamma2=15.0" in text
        assert "+3.37*" in text
    assert "| TPT | 46.70±0.14 |" in markdown
    assert r"TPT & 46.70$\pm$0.14 &" in latex
    assert latex.count(r"\begin{tabular}{lrrrrr}") == 3
    assert latex.count(r"\begin{tabular}{lll}") == 1  # the claims
