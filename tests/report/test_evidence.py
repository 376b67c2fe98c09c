"""What is said of a front: from sums of predictions whose truth is known."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.records.measurements import BLOCK_STATS_FILE
from fpp_sweep.report import write_report
from fpp_sweep.report.evidence import evidence_of
from fpp_sweep.report.words import remarks, sentences
from fpp_sweep.spec.files import write_json
from fpp_sweep.statistics.block_stats import BlockStats, to_bytes
from fpp_sweep.sweep.display import WIDTH, final_table
from fpp_sweep.tracking.desired import sweep_run
from fpp_sweep.trial import evidence as below
from fpp_sweep.trial.artifacts import read_sums, write_predictions
from tests.names import PLAIN, TPT
from tests.report.made import info, trial
from tests.report.worlds import FAR, NEAR, World, write


def read(folder):
    front = front_of(folder.info(), folder.trials())
    return front, evidence_of(folder.artifacts, folder.info(), front)


@pytest.fixture
def far(tmp_path):
    return write(SweepFolder(tmp_path / "far"), World(1000), FAR, ("val", "test"))


def test_a_member_that_beats_a_baseline_is_told_with_by_how_much(far):
    front, evidence = read(far)
    assert [member.name for member in front.members] == ["trial-0002"]
    heading, told = sentences(far.info(), front, evidence)
    assert heading == "on test (1000 images of the smallest dataset):"
    assert re.fullmatch(
        rf"trial-0002: better than {PLAIN} in accuracy \(\+\d+\.\d \[\+\d+\.\d, \+\d+\.\d\]\) and ece "
        rf"\(-\d+\.\d \[-\d+\.\d, -\d+\.\d\]\); better than {TPT} in accuracy .*",
        told,
    )
    assert evidence.standing("trial-0002") == "clear 1.00"
    assert evidence.standing("trial-0003") == "unlikely 0.00"
    assert evidence.alike["trial-0002"] == []


def test_who_is_on_the_confirmed_front_alone_has_a_row_a_config_and_a_mark(tmp_path):
    sides = {**FAR, "trial-0004": (0.69, 0.11)}
    folder = write(SweepFolder(tmp_path / "sweep"), World(1000), sides, ("val", "confirmed"))
    best = folder.report / "best"
    write_report(folder, pages=True)
    assert (best / "trial-0002.yaml").exists()
    assert not (best / "trial-0004.yaml").exists()
    folder.write_info(replace(folder.info(), confirmed_front=["trial-0004", "trial-0002"]))
    write_report(folder, pages=True)
    front, evidence = read(folder)
    assert [member.name for member in front.members] == ["trial-0002"]
    assert [record.name for record in front.chosen] == ["trial-0002", "trial-0004"]
    comment, *_ = (best / "trial-0004.yaml").read_text().splitlines()
    assert comment == "# trial-0004 of sweep sweep, beside its front, confirmed"
    assert ", on its front, best accuracy, best ece, knee, confirmed\n" in (best / "trial-0002.yaml").read_text()
    assert sorted(path.stem for path in best.glob("*.yaml")) == [
        "best-accuracy", "best-ece", "knee", "trial-0002", "trial-0004"
    ]  # fmt: skip
    rows = final_table(folder.info(), folder.trials(), evidence).splitlines()
    (row,) = [line for line in rows if line.startswith("trial-0004 ") and "confirmed" in line]
    (member,) = [place for place, line in enumerate(rows) if line.startswith("trial-0002 ") and "clear" in line]
    assert member < rows.index(row) < next(place for place, line in enumerate(rows) if line.startswith(PLAIN))
    assert any(line.startswith("trial-0004  fpp.") for line in rows)  # its settings
    assert any(
        line.startswith(f"trial-0004: better than {PLAIN}") for line in sentences(folder.info(), front, evidence)
    )
    with (folder.report / "front.csv").open() as file:
        (shown,) = [one for one in csv.DictReader(file) if one["name"] == "trial-0004"]
    assert shown["marks"] == "confirmed"
    (rival,) = json.loads((folder.report / "front.json").read_text())["rivals"]
    assert (rival["name"], rival["marks"]) == ("trial-0004", ["confirmed"])
    page = (folder.report / "sweep.html").read_text()
    assert '<button type="button" data-trial="trial-0004">trial-0004</button><small>confirmed</small>' in page
    folder.write_info(replace(folder.info(), confirmed_front=[]))
    write_report(folder, pages=False)
    assert not (best / "trial-0004.yaml").exists()


def test_where_nobody_beats_a_baseline_that_is_said_with_what_it_would_take(tmp_path):
    folder = write(SweepFolder(tmp_path / "near"), World(200), NEAR)
    front, evidence = read(folder)
    heading, *told, last = sentences(folder.info(), front, evidence)
    assert heading == "on val (200 images of the smallest dataset, by which they were chosen: optimistic):"
    assert told == [f"{member.name}: not told apart from {PLAIN}" for member in front.members]
    assert re.match("no member of the front beats a baseline on these images", last)
    notes = list(remarks(folder.info(), front, evidence))
    assert "200 images of a dataset are few for ece: smooth_ece ranks trials better below 1000" in notes
    assert "ece: no interval: biased by few images (200 of a dataset, 1000 would do)" in notes
    assert any(re.match(r"trial-000\d cannot be told from trial-000\d", line) for line in notes)
    assert any(re.match(r"trial-000\d was chosen as the most accurate: expect .* on fresh", one) for one in notes)


def test_of_many_trials_those_next_to_the_front_are_resampled(far, monkeypatch):
    monkeypatch.setattr(below, "NEAREST", 1)
    front, evidence = read(far)
    assert set(evidence.support) == {member.name for member in front.members} == {"trial-0002"}
    assert evidence.splits["val"].interval("trial-0003", "accuracy") == "no interval: it is far from the front"
    assert not isinstance(evidence.splits["val"].interval("trial-0002", "accuracy"), str)


def test_a_report_between_two_pages_uses_the_evidence_of_the_last(far):
    first = write_report(far, pages=True)
    for file in far.path.glob("artifacts/*/*/block_stats.npz"):
        file.unlink()
    assert write_report(far, pages=False, evidence=first) is first
    assert json.loads((far.report / "front.json").read_text())["support"] == {"trial-0002": 1.0, "trial-0003": 0.0}


def test_tables_page_picture_terminal_and_mlflow_show_it(far):
    write_report(far, pages=True)
    document = json.loads((far.report / "front.json").read_text())
    (member,) = document["members"]
    assert member["standing"] == "clear 1.00"
    assert document["support"] == {"trial-0002": 1.0, "trial-0003": 0.0}
    low, high = (member["differences"]["test"][TPT]["ece"][end] for end in ("low", "high"))
    assert low < high < 0
    interval = member["intervals"]["val"]["accuracy"]
    text = f"[{interval['low']:.1f}, {interval['high']:.1f}]"
    page = (far.report / "sweep.html").read_text()
    assert f"<small>{text}</small>" in page
    assert "clear 1.00" in page
    assert "better than" in page
    assert "in 10 to 90 % of them" in page
    head, first, *_ = (far.report / "front.csv").read_text().splitlines()
    row = dict(zip(head.split(","), first.split(","), strict=True))
    assert float(row["accuracy (val) low"]) == interval["low"]
    assert float(row["support"]) == 1
    table = final_table(far.info(), far.trials(), read(far)[1])
    assert max(map(len, table.splitlines())) <= WIDTH
    assert "clear 1.00" in table
    assert f"better than {PLAIN} in accuracy" in " ".join(table.split())
    note = sweep_run(far.info(), far.trials(), document).tags["mlflow.note.content"]
    assert "better than" in note
    assert f"[{interval['low']:.4g}, {interval['high']:.4g}]" in note


def test_a_picture_shows_the_intervals_and_the_region(far, monkeypatch):
    from matplotlib.axes import Axes

    drawn = []
    monkeypatch.setattr(Axes, "errorbar", lambda self, *at, **style: drawn.append(style))
    monkeypatch.setattr(Axes, "fill_between", lambda self, *at, **style: drawn.append(style["label"]))
    write_report(far, pages=True)
    assert "front in 10 to 90 % of resamples" in drawn
    assert [bool(one["xerr"] and one["yerr"]) for one in drawn if isinstance(one, dict)] == [True]


def test_without_sums_it_is_said_that_there_are_none(tmp_path):
    folder = SweepFolder(tmp_path / "old")
    folder.write_info(info())
    folder.write_trial(trial(0))
    front, evidence = read(folder)
    assert list(remarks(folder.info(), front, evidence)) == ["no intervals: there are no sums of the predictions"]
    assert list(sentences(folder.info(), front, evidence)) == []
    assert evidence.standing("trial-0000") == ""
    write_report(folder, pages=True)


def test_old_folders_are_read_from_their_predictions(tmp_path, far):
    """The same sums to the bit, whether they stand beside the predictions or are made from them."""
    from fpp_sweep.core.metrics import Predictions

    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.ones(3), 150).astype(np.float32)
    made = Predictions.of([f"image {index}" for index in range(150)], generator.integers(0, 3, 150), probabilities)
    write_predictions(made, ("a", "b", "c"), tmp_path / "val" / "digits.seed0.predictions.parquet")
    (found,) = read_sums(tmp_path, "val").values()
    expected = BlockStats.of_predictions("digits", made)
    for name in ("digests", "correct", "counts", "hits", "residuals", "nll", "brier"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    assert read_sums(tmp_path, "test") == {}
    (tmp_path / "val" / BLOCK_STATS_FILE).write_bytes(b"damaged")
    assert len(read_sums(tmp_path, "val")) == 1


def test_a_trial_that_saw_other_images_is_not_compared(far):
    path = far.artifacts("trial-0003") / "val" / BLOCK_STATS_FILE
    path.write_bytes(to_bytes(World(900).sums(0.9, 0.0)))
    front, evidence = read(far)
    assert set(evidence.support) == {"trial-0002"}
    assert evidence.splits["val"].difference("trial-0003", "trial-0002", "ece") is None
    assert evidence.splits["val"].interval("trial-0003", "ece") == "no interval: there are no sums of these images"
    assert front.members


def test_one_datasets_objective_has_that_datasets_interval(far):
    _, evidence = read(far)
    found = evidence.splits["val"]
    alone, mean = found.interval("trial-0002", "accuracy/digits"), found.interval("trial-0002", "accuracy")
    assert alone.sd > 1.2 * mean.sd
    assert found.interval("trial-0002", "accuracy/pets") == "no interval: it does not follow from sums over images"


def test_what_mlflow_reads_of_a_front_is_what_the_report_wrote(far):
    from fpp_sweep.tracking.sync import _read_front

    write_report(far, pages=False)
    known = _read_front(far.report / "front.json")
    assert known["standing"] == {"trial-0002": "clear 1.00", "trial-0003": "unlikely 0.00"}
    assert known["says"][0].startswith("on test")
    write_json(far.report / "front.json", {"members": [], "standing": []})
    assert _read_front(far.report / "front.json") == {}
