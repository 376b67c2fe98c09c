"""Experiments that need no sweep, and their output."""

import csv
from types import SimpleNamespace

import pytest

from fpp_sweep.core.datasets import open_dataset
from fpp_sweep.core.models.loading import load
from fpp_sweep.report.document import document_to_markdown, document_to_text
from fpp_sweep.reproduce import analysis
from fpp_sweep.reproduce.analysis import entropy_and_penalties, finding_rows, findings_document
from fpp_sweep.reproduce.experiment_files import find
from fpp_sweep.reproduce.tables import saved_experiment
from fpp_sweep.reproduce.theory import Finding, Setting
from fpp_sweep.reproduce.theory.entropy import MEASURES
from fpp_sweep.reproduce.theory.setting import QUICK
from fpp_sweep.spec.config import preset
from fpp_sweep.spec.errors import InputError
from tests.kit.spaces import small_space

FOUND = Finding(name="a step", says="it is plain", measured={"cosine": 0.7472, "angle": 41.65}, verdict="holds in part")


def test_a_finding_is_written_with_its_verdict_and_numbers():
    document = findings_document("theory, on model tiny", [FOUND])
    assert document_to_text(document).splitlines()[1:] == [
        "theory, on model tiny",
        "",
        "a step: holds in part",
        "The paper: it is plain.",
        "measured   value",
        "cosine    0.7472",
        "angle      41.65",
    ]
    markdown = document_to_markdown(document)
    assert "## a step: holds in part" in markdown
    assert "| cosine | 0.7472 |" in markdown
    head, *rows = finding_rows([FOUND])
    assert head == ["finding", "verdict", "measured", "value"]
    assert rows == [["a step", "holds in part", "cosine", "0.7472"], ["a step", "holds in part", "angle", "41.65"]]


def test_findings_are_written_as_markdown_and_csv(tmp_path, monkeypatch, ascii_locale):
    """The files are UTF-8 in any locale; the title has the user's name of a dataset."""
    title = "theory, on the images of Straßen"
    monkeypatch.setattr(analysis, "_open_setting", lambda name, space: (None, title))
    monkeypatch.setattr(analysis, "findings_of", lambda setting: [FOUND])
    text = analysis.compute(find("theory"), small_space(), tmp_path)
    report = tmp_path / "theory" / "report"
    assert text == document_to_text(findings_document(title, [FOUND]))
    markdown = (report / "table.md").read_text(encoding="utf-8")
    assert title in markdown
    assert "a step" in markdown
    with (report / "table.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [list(row) for row in finding_rows([FOUND])]
    assert b"\r" not in (report / "table.csv").read_bytes()


def test_a_users_table_names_the_computation_that_it_wants(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("theory: em_reg\n")
    figure = SimpleNamespace(data=[{"value": 1.0}], to_bytes=lambda kind: b"drawing")
    monkeypatch.setattr(analysis, "_open_setting", lambda name, space: (None, "mine, on model tiny"))
    monkeypatch.setattr(analysis, "entropy_and_penalties", lambda setting: (figure, [["L_disp", "real views", "0.50"]]))
    text = analysis.compute(find(str(tmp_path / "mine.yaml")), small_space(), tmp_path)
    assert "L_disp" in text
    assert (tmp_path / "mine" / "report" / "figure.png").read_bytes() == b"drawing"
    (tmp_path / "mine.yaml").unlink()
    assert saved_experiment(tmp_path / "mine").experiment.theory == "em_reg"


def test_a_computation_of_another_name_is_refused(tmp_path):
    (tmp_path / "mine.yaml").write_text("theory: entropy\n")
    with pytest.raises(InputError, match=r"mine.yaml.*theory"):
        find(str(tmp_path / "mine.yaml"))


def test_the_papers_stand_in_for_entropy_explains_it_for_uniform_views_only():
    setting = Setting.of(load("tiny", "cpu"), open_dataset("scenes", "test", None), preset("tiny"), 0, QUICK)
    drawing, shares = entropy_and_penalties(setting)
    assert len(drawing.data) == 2 * len(MEASURES) * QUICK.contexts
    assert drawing.to_bytes("png")[:4] == b"\x89PNG"
    actual = {(name, kind.partition(" ")[0]): float(share) for name, kind, share in shares}
    assert actual["L_disp", "uniform"] == pytest.approx(1, abs=0.02)
    assert actual["L_disp", "real"] < 0.6
