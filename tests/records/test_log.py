"""Logs: an entry is one line, and an entry that cannot be written is dropped."""

import re

from fpp_sweep.records.folder import write_line


def test_an_entry_is_one_line_with_its_time_and_details_below(tmp_path):
    file = tmp_path / "logs/here-1.log"
    write_line(file, "digits: begins")
    write_line(file, "digits: died\x1b[2J\nof a rogue name", "Traceback\n  at a line\n")
    first, second, *below = file.read_text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d digits: begins", first)
    assert second.endswith(r" digits: died\x1b[2J\nof a rogue name")
    assert below == ["Traceback", "  at a line"]


def test_an_entry_that_cannot_be_written_is_dropped(tmp_path):
    (tmp_path / "logs").write_text("a file where the folder should be")
    write_line(tmp_path / "logs/here-1.log", "digits: begins")
    assert (tmp_path / "logs").read_text() == "a file where the folder should be"
