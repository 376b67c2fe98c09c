"""The provenance of a sweep on its page: ranges, computation, commands and versions."""

from pathlib import Path

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.report.html import blocks_to_html
from fpp_sweep.report.provenance import provenance_section
from fpp_sweep.spec.messages import runnable
from tests.kit.records import all_baselines, split_result, sweep_info, trial, write_sweep


def test_the_provenance_has_the_searched_ranges_and_the_commands(tmp_path):
    info = sweep_info()
    folder = write_sweep(tmp_path, info, [trial(0)])
    section = provenance_section(folder, info, front_of(info, folder.trials()))
    titles = ["Search space", "How the numbers are computed", "Commands", "Versions and settings"]
    assert [block.title for block in section.blocks] == titles
    (ranges,) = section.blocks[0].blocks
    assert [[cell.text for cell in row.cells] for row in ranges.rows] == [
        ["fpp.gamma2", "0.1 to 15, log"],
        ["fpp.class_var", "x0.05 to x1"],
    ]
    (versions,) = section.blocks[3].blocks
    for table in (ranges, versions):
        assert all(column.is_text for column in table.columns)
    without_ranges = provenance_section(folder, sweep_info(space={}), front_of(info, []))
    assert [block.title for block in without_ranges.blocks] == titles[1:]


@pytest.mark.parametrize(
    ("baselines", "corner"),
    [(all_baselines(), "the worst baseline or the median trial, whichever is worse"), ([], "the median trial")],
)
def test_the_commands_name_the_folder_and_the_knee_its_corner(tmp_path, baselines, corner):
    info = sweep_info()
    folder = write_sweep(tmp_path, info, [trial(0), *baselines])
    text = blocks_to_html([provenance_section(folder, info, front_of(info, folder.trials()))])
    assert f"<pre>{runnable(f'fpp-sweep show {folder.path}')}</pre>" in text
    assert f"<pre>{runnable(f'fpp-sweep show {folder.path} --page')}</pre>" in text
    assert f"between its values and those of {corner}, each" in text


def paragraphs_of(info, records):
    section = provenance_section(SweepFolder(Path("mine")), info, front_of(info, records))
    (computation,) = [block for block in section.blocks if block.title == "How the numbers are computed"]
    return [block.text for block in computation.blocks]


def test_the_number_of_images_is_the_largest_on_each_split_that_was_measured():
    few = trial(0, 70, 5, test=True)
    many = trial(1, 71, 6, results={"val": split_result(71, 6, datasets=("a", "b", "c", "d"))})
    first, *_ = paragraphs_of(sweep_info(), [few, many])
    assert first == "Each trial is measured on 800 images of val, 600 images of test, each image once for each seed."
    assert not paragraphs_of(sweep_info(), [])[0].startswith("Each trial is measured")
    only_test = trial(0, results={"test": split_result()})
    assert paragraphs_of(sweep_info(), [only_test])[0].startswith("Each trial is measured on 600 images of test, each")


def test_only_a_sweep_with_a_reference_point_has_a_hypervolume():
    with_corner = [text for text in paragraphs_of(sweep_info(), [trial(0)]) if "hypervolume" in text]
    assert with_corner == [
        "The hypervolume is the volume that the front dominates, up to the reference point accuracy 60.00, ece 20.00."
    ]
    assert "hypervolume" not in " ".join(paragraphs_of(sweep_info(reference=None), [trial(0)]))


def test_the_command_of_a_sweep_is_a_command_and_no_setting(tmp_path):
    for command in ("fpp-sweep tune --space mine.yaml", ""):
        info = sweep_info(command=command)
        folder = write_sweep(tmp_path, info, [trial(0)])
        section = provenance_section(folder, info, front_of(info, folder.trials()))
        assert section.anchor == "provenance"
        commands, versions = section.blocks[2:]
        texts = [block.text for block in commands.blocks]
        assert ("Run this sweep:" in texts) == (command in texts[:2]) == bool(command)
        assert len(texts) == (6 if command else 4)
        rows = [[cell.text for cell in row.cells] for row in versions.blocks[0].rows]
        assert rows == sorted(rows)
        names = [name for name, _ in rows]
        assert "command" not in names
        assert "torch" in names
        assert [column.title for column in versions.blocks[0].columns] == ["name", "value"]
