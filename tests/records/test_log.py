"""Logs: a line is a line, shows no secret, and harms nothing where it cannot be written."""

import re

from fpp_sweep.records.log import write_line


def test_a_line_has_its_time_and_what_is_below_it_stays_below(tmp_path):
    file = tmp_path / "logs/here-1.log"
    write_line(file, "digits: begins")
    write_line(file, "digits: died\x1b[2J\nof a rogue name", "Traceback\n  at postgresql://me:S3cret@db/mlflow\n")
    first, second, *below = file.read_text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d digits: begins", first)
    assert second.endswith(r" digits: died\x1b[2J\nof a rogue name")
    assert below == ["Traceback", "  at postgresql://***@db/mlflow"]


def test_what_cannot_be_written_is_lost(tmp_path):
    (tmp_path / "logs").write_text("a file where the folder should be")
    write_line(tmp_path / "logs/here-1.log", "digits: begins")
    assert (tmp_path / "logs").read_text() == "a file where the folder should be"
