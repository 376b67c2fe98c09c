"""FGVC-Aircraft's text files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fpp_sweep.core.datasets import open_dataset
from fpp_sweep.spec.errors import InputError
from tests.builders import AIRCRAFT, build_aircraft


@pytest.mark.parametrize(("split", "count"), [("train", 12), ("val", 4), ("test", 8)])
def test_labels_are_lines_of_the_variants_file(tmp_path: Path, split: str, count: int) -> None:
    folder = build_aircraft(tmp_path)
    dataset = open_dataset("aircraft", split, tmp_path)
    assert dataset.classes == AIRCRAFT
    assert len(dataset) == count
    lines = (folder / f"images_variant_{split}.txt").read_text().splitlines()
    expected = {line[:7] + ".jpg": AIRCRAFT.index(line[8:]) for line in lines}
    assert dict(zip(dataset.ids, dataset.labels.tolist(), strict=True)) == expected


def test_windows_line_ends_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    folder = build_aircraft(tmp_path)
    for file in folder.glob("*.txt"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    assert open_dataset("aircraft", "test", tmp_path).classes == AIRCRAFT


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("variants.txt", "C-47", "variants.txt, line 5: variant 'C-47' is listed twice"),
        ("images_variant_test.txt", "0034321 C-48", "line 9: unknown variant .* mean 'C-47'"),
        ("images_variant_test.txt", "0034321", "line 9: unknown variant ''"),
        ("images_variant_test.txt", "../x C-47", "leaves the image folder"),
        ("images_variant_test.txt", "0034325 C-47", "line 9: image 0034325 is listed twice"),
        ("images_variant_test.txt", "7 C-47", "1 of 9 images are not in .*, such as 7.jpg"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, file: str, line: str, complaint: str) -> None:
    folder = build_aircraft(tmp_path)
    with (folder / file).open("a") as text:
        text.write(line + "\n")
    with pytest.raises(InputError, match=complaint):
        open_dataset("aircraft", "test", tmp_path)


@pytest.mark.parametrize("file", ["variants.txt", "images_variant_test.txt"])
def test_a_missing_text_file_is_named(tmp_path: Path, file: str) -> None:
    folder = build_aircraft(tmp_path)
    (folder / file).unlink()
    with pytest.raises(InputError, match=f"aircraft: split file {folder / file} is not there"):
        open_dataset("aircraft", "test", tmp_path)
