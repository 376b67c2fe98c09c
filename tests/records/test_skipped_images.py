"""Images that a trial skipped: the file has those of the trial's last run."""

import json

import pytest

from fpp_sweep import show
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.measurements import SKIPPED, read_skipped, skipped_lines, write_skipped
from fpp_sweep.report.writing import write_report, write_results
from fpp_sweep.sweep.summary import summary_lines
from tests.kit.records import build_sweep

IMAGES = [
    {"dataset": "pets", "seed": 0, "image": "a.jpg", "reason": "a.jpg: truncated"},
    {"dataset": "pets", "seed": 0, "image": "b.jpg", "reason": "b.jpg: truncated"},
    {"dataset": "pets", "seed": 1, "image": "a.jpg", "reason": "a.jpg: truncated"},
    {"dataset": "pets", "seed": 1, "image": "b.jpg", "reason": "b.jpg: truncated"},
]
TRIAL = "trial-0001"


@pytest.fixture
def folder(tmp_path):
    return SweepFolder(tmp_path / "sweep")


@pytest.fixture
def split_folder(folder):
    path = folder.artifacts(TRIAL) / "val"
    path.mkdir(parents=True)
    return path


def test_images_are_counted_once_for_all_seeds(folder, split_folder):
    write_skipped(split_folder, IMAGES)
    assert read_skipped(folder, TRIAL, "val") == IMAGES
    assert skipped_lines(folder, TRIAL, "val") == ["skipped pets: 2 images, such as a.jpg: truncated"]


def test_the_summary_the_page_and_the_answer_count_the_images_of_all_trials(tmp_path):
    sweep = build_sweep(tmp_path / "sweep", report=False)
    for name, images in ((TRIAL, IMAGES), ("trial-0002", [{**IMAGES[0], "image": "c.jpg"}])):
        write_skipped(sweep.artifacts(name) / "val", images)
    write_report(sweep, pages=True)
    note = "pets: 3 images left out (work.on_bad_image: skip), such as a.jpg: truncated"
    for text in ("\n".join(summary_lines(sweep, 200)), (sweep.report / "answer.md").read_text()):
        assert note in text
    assert f'<p class="warning">{note}</p>' in (sweep.report / "sweep.html").read_text()


def test_a_run_without_skipped_images_removes_the_file_of_an_earlier_run(folder, split_folder):
    write_skipped(split_folder, IMAGES)
    write_skipped(split_folder, [])
    assert read_skipped(folder, TRIAL, "val") == []
    assert not (split_folder / SKIPPED).exists()


DAMAGED = {"empty": "", "a mapping": "{}", "a number": "[3]", "keys": '[{"dataset": "pets"}]', "deep": "[" * 100_000}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_counts_as_no_skipped_images(folder, split_folder, content):
    (split_folder / SKIPPED).write_text(content)
    assert read_skipped(folder, TRIAL, "val") == []


def test_skipped_images_of_a_trial_are_shown_and_in_the_results(tmp_path, capsys):
    sweep = build_sweep(tmp_path / "sent", report=False)
    write_skipped(sweep.artifacts(TRIAL) / "val", IMAGES)
    show.main([str(sweep.path), TRIAL])
    assert "skipped pets: 2 images, such as a.jpg: truncated" in capsys.readouterr().out
    trials = json.loads(write_results(sweep).read_text())["trials"]
    assert [trial["skipped"] for trial in trials if trial["name"] == TRIAL] == [IMAGES]
