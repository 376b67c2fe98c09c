"""What a sweep leaves on disk has one writer, and is there whole, plain and of this version, or refused."""

import json
import math
import os
from dataclasses import replace

import pytest

from fpp_sweep.errors import InputError
from fpp_sweep.records.folder import FORMAT, SweepFolder
from tests.sweeps import sweep_info, trial


@pytest.fixture
def folder(tmp_path):
    """A sweep that runs, and a trial of it."""
    folder = SweepFolder(tmp_path / "sweep")
    folder.write_info(sweep_info("sweep", state="running"))
    folder.write_trial(trial(0))
    return folder


# how a record is changed, and how it is read again
RECORDS = {
    "the sweep": (lambda folder, spent: folder.write_info(replace(folder.info(), spent=spent)), SweepFolder.info),
    "a trial": (
        lambda folder, spent: folder.write_trial(replace(trial(0), values=[61.0, spent])),
        lambda folder: folder.trial("trial-0000"),
    ),
}
each_record = pytest.mark.parametrize(("write", "read"), RECORDS.values(), ids=RECORDS)


def test_two_drivers_cannot_hold_the_same_sweep(folder):
    other = SweepFolder(folder.path)
    with folder.locked(), pytest.raises(InputError, match=f"is being run by process {os.getpid()};"), other.locked():
        pass
    with other.locked():  # it goes with its holder
        pass


@each_record
def test_a_record_that_cannot_be_written_whole_stays_what_it_was(folder, monkeypatch, write, read):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    before, files = read(folder), set(folder.path.rglob("*"))
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(folder, 5.0)
    assert read(folder) == before
    assert set(folder.path.rglob("*")) == files


@each_record
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_not_written(folder, write, read, value):
    """Other readers of JSON than Python's refuse a file with NaN in it."""
    before = read(folder)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(folder, value)
    assert read(folder) == before


@pytest.mark.parametrize("read", [SweepFolder.info, SweepFolder.trials], ids=RECORDS)
@pytest.mark.parametrize(
    ("format", "complaint"), [({"format": FORMAT + 1}, "another version"), ({}, "not readable as a record")]
)
def test_a_record_of_another_format_is_refused(folder, read, format, complaint):
    for file in (folder.info_file, folder.trial_file("trial-0000")):
        document = json.loads(file.read_text())
        assert document.pop("format") == FORMAT
        file.write_text(json.dumps({**format, **document}))
    with pytest.raises(InputError, match=complaint):
        read(folder)


@pytest.mark.parametrize(
    ("constraints", "feasible"),
    [
        ({}, True),
        ({"accurate": 0.0}, True),
        ({"accurate": -1.0, "fast": 0.0}, True),
        ({"accurate": -1.0, "fast": 1e-9}, False),
    ],
)
def test_a_constraint_that_is_just_met_holds(constraints, feasible):
    assert replace(trial(0), constraints=constraints).feasible == feasible
