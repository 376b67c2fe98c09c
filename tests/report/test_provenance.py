"""The provenance of a sweep on its page: ranges, computation, commands and versions."""

import pytest

from fpp_sweep.records.front import front_of
from fpp_sweep.report.html import blocks_to_html
from fpp_sweep.report.provenance import provenance_section
from fpp_sweep.spec.messages import runnable
from tests.kit.records import all_baselines, sweep_info, trial, write_sweep


def test_the_provenance_has_the_searched_ranges_and_the_commands(tmp_path):
    info = sweep_info()
    folder = write_sweep(tmp_path, info, [trial(0)])
    section = provenance_section(folder, info, front_of(info, folder.trials()))
    titles = ["Search space", "How the numbers are computed", "Commands", "Versions and settings"]
    assert [block.title for block in section.blocks] == titles
    (ranges,) = section.blocks[0].blocks
    assert [[cell.text for cell in row.cells] for row in ranges.rows] == [
        ["fpp.gamma2", "0.1 to 15.0, log"],
        ["fpp.class_var", "0.001 to 0.02"],
    ]
    (versions,) = section.blocks[3].blocks
    for table in (ranges, versions):
        assert all(column.is_text for column in table.columns)
    without_ranges = provenance_section(folder, sweep_info(space={}), front_of(info, []))
    assert [block.title for block in without_ranges.blocks] == titles[1:]


@pytest.mark.parametrize(("baselines", "corner"), [(all_baselines(), "worst baseline"), ([], "median trial")])
def test_the_commands_name_the_folder_and_the_knee_its_corner(tmp_path, baselines, corner):
    info = sweep_info()
    folder = write_sweep(tmp_path, info, [trial(0), *baselines])
    text = blocks_to_html([provenance_section(folder, info, front_of(info, folder.trials()))])
    assert f"<pre>{runnable(f'fpp-sweep show {folder.path}')}</pre>" in text
    assert f"<pre>{runnable(f'fpp-sweep show {folder.path} --page')}</pre>" in text
    assert f"between its values and those of the {corner}, each" in text
