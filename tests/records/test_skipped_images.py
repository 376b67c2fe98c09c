"""Images that a trial skipped: the file has those of the trial's last run."""

import pytest

from fpp_sweep.records.skipped_images import FILE, read_skipped, skipped_lines, write_skipped

IMAGES = [
    {"dataset": "pets", "seed": 0, "image": "a.jpg", "reason": "a.jpg: truncated"},
    {"dataset": "pets", "seed": 0, "image": "b.jpg", "reason": "b.jpg: truncated"},
    {"dataset": "pets", "seed": 1, "image": "a.jpg", "reason": "a.jpg: truncated"},
    {"dataset": "pets", "seed": 1, "image": "b.jpg", "reason": "b.jpg: truncated"},
]


def test_images_are_counted_once_for_all_seeds(tmp_path):
    write_skipped(tmp_path, IMAGES)
    assert read_skipped(tmp_path) == IMAGES
    assert skipped_lines(tmp_path) == ["skipped pets: 2 images, such as a.jpg: truncated"]


def test_a_run_without_skipped_images_removes_the_file_of_an_earlier_run(tmp_path):
    write_skipped(tmp_path, IMAGES)
    write_skipped(tmp_path, [])
    assert read_skipped(tmp_path) == []
    assert not (tmp_path / FILE).exists()


DAMAGED = {"empty": "", "a mapping": "{}", "a number": "[3]", "keys": '[{"dataset": "pets"}]', "deep": "[" * 100_000}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_counts_as_no_skipped_images(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    assert read_skipped(tmp_path) == []
