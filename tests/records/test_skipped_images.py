"""Images that a trial left out: the file holds those of its last run."""

import pytest

from fpp_sweep.records.skipped_images import FILE, read_skipped, skipped_lines, write_skipped

IMAGES = [
    {"dataset": "pets", "seed": seed, "image": name, "reason": f"{name}: truncated"}
    for seed in (0, 1)
    for name in ("a.jpg", "b.jpg")
]


def test_images_are_counted_once_for_all_seeds(tmp_path):
    write_skipped(tmp_path, IMAGES)
    assert read_skipped(tmp_path) == IMAGES
    assert skipped_lines(tmp_path) == ["skipped pets: 2 images, such as a.jpg: truncated"]


def test_a_run_that_leaves_out_nothing_removes_the_file_of_an_earlier_run(tmp_path):
    write_skipped(tmp_path, IMAGES)
    write_skipped(tmp_path, [])
    assert read_skipped(tmp_path) == []
    assert not (tmp_path / FILE).exists()


DAMAGED = {"empty": "", "a mapping": "{}", "a number": "[3]", "keys": '[{"dataset": "pets"}]', "deep": "[" * 100_000}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_counts_as_none(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    assert read_skipped(tmp_path) == []
