"""The provenance of a sweep on its page: ranges, computation, commands and versions."""

from fpp_sweep.records.front import front_of
from fpp_sweep.report.provenance import provenance_section
from tests.kit.records import sweep_info, trial, write_sweep


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
    without_ranges = provenance_section(folder, sweep_info(space={}), front_of(info, []))
    assert [block.title for block in without_ranges.blocks] == titles[1:]
