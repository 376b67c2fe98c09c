"""docs/printed.md is up to date, and its numbers follow from the printed cells."""

import math

import numpy as np
import pytest

from fpp_sweep.reproduce.experiment_files import find
from tests.kit.processes import ROOT
from tools import printed

MEANS = printed.data()["means"]
GOLDEN = ROOT / "tests/golden/family_small.npz"


def test_the_page_is_up_to_date():
    assert (ROOT / "docs/printed.md").read_text() == printed.page() + "\n"


@pytest.mark.parametrize("row", MEANS, ids=lambda row: f"{row['of']} {row['what']}")
def test_printed_means_equal_the_means_of_their_cells(row):
    assert printed.mean_of(row["cells"]) == pytest.approx(row["printed"], abs=0.0051)


def test_corrected_cells_give_the_printed_mean():
    for slip in printed.data()["slips"]:
        assert printed.corrected(slip) == pytest.approx(slip["printed"], abs=0.051)
        assert slip["mean_of_cells"] != pytest.approx(slip["printed"], abs=0.5)


def test_the_scripts_of_atpt_move_the_angle_in_opposite_directions():
    with np.load(GOLDEN) as golden:
        start = float(golden["atpt_penalty/mean_angle"])
        assert np.all(golden["atpt_released_fg/theta_after"] < start)
        assert np.all(golden["atpt_released_shifts/theta_after"] > start)


def test_no_ratio_of_entropies_in_tda_exceeds_the_natural_logarithm_of_two():
    for classes in (10, 47, 1000):
        assert math.log(classes) / math.log2(classes) == pytest.approx(0.693, abs=1e-3)


def test_the_table_of_the_family_prints_the_same_cells():
    rows = {row.name: row for row in find("family").rows}
    for name, method in (("tda_ensemble", "TDA"), ("boostadapter_ensemble", "BoostAdapter"), ("zero", "ZERO")):
        cells = next(row["cells"] for row in MEANS if row["of"] == method)
        numbers = dict(rows[name].printed["accuracy"])
        average = numbers.pop("average")
        assert sorted(number.value for number in numbers.values()) == sorted(cells)
        assert average.value == next(row["printed"] for row in MEANS if row["of"] == method)
