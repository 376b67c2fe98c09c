"""Experiments without a sweep, and their output."""

import csv
import io

import pytest

from fpp_sweep.core.datasets import open_dataset
from fpp_sweep.core.models.loading import load
from fpp_sweep.reproduce.analysis import as_csv, as_markdown, entropy_and_penalties, lines
from fpp_sweep.reproduce.theory import Finding, Setting
from fpp_sweep.reproduce.theory.entropy import MEASURES
from fpp_sweep.reproduce.theory.setting import QUICK
from fpp_sweep.spec.config import preset

FOUND = Finding(name="a step", says="it is plain", measured={"cosine": 0.7472, "angle": 41.65}, verdict="holds in part")


def test_a_finding_is_written_with_its_verdict_and_numbers():
    assert lines([FOUND])[1:3] == ["a step: holds in part", "  the paper: it is plain"]
    rows = list(csv.DictReader(io.StringIO(as_csv([FOUND]))))
    assert [(row["measured"], float(row["value"])) for row in rows] == [("cosine", 0.7472), ("angle", 41.65)]
    assert "| a step: it is plain | holds in part | cosine 0.7472; angle 41.65 |" in as_markdown([FOUND])


def test_the_papers_stand_in_explains_entropy_for_uniform_views_only():
    setting = Setting.of(load("tiny", "cpu"), open_dataset("scenes", "test", None), preset("tiny"), 0, QUICK)
    drawing, shares = entropy_and_penalties(setting)
    assert len(drawing.data) == 2 * len(MEASURES) * QUICK.contexts
    assert drawing.to_bytes("png")[:4] == b"\x89PNG"
    actual = {(name, kind.partition(" ")[0]): float(share) for name, kind, share in shares}
    assert actual["L_disp", "uniform"] == pytest.approx(1, abs=0.02)
    assert actual["L_disp", "real"] < 0.6
