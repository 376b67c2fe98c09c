"""Files of a sweep's folder: they have one writer, and incomplete files or files of another version are refused."""

import json
import math
import os
import pickle
from dataclasses import replace

import pytest

from fpp_sweep.records.folder import FORMAT, SweepFolder
from fpp_sweep.spec.errors import InputError
from tests.kit.disks import mounted
from tests.kit.records import sweep_info, trial


@pytest.fixture
def folder(tmp_path):
    """The folder of a running sweep with one trial."""
    folder = SweepFolder(tmp_path / "sweep")
    folder.write_info(sweep_info(name="sweep", state="running"))
    folder.write_trial(trial(0))
    return folder


# for each kind of record, a function that changes it and a function that reads it
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
    with other.locked():  # the lock is free after its holder has released it
        pass


def refusal(path):
    """Return the error of a driver that cannot lock that folder."""
    with pytest.raises(InputError) as refused, SweepFolder(path).locked():
        pass
    return str(refused.value)


def test_a_folder_that_cannot_be_written_or_locked_is_refused_with_a_remedy(tmp_path, monkeypatch):
    advice = "; allow this user to write there"
    with mounted(tmp_path / "forbidden", "size=64k,ro") as disk:
        assert refusal(disk / "one") == f"{disk}/one/lock cannot be written and locked (Read-only file system){advice}"
    with mounted(tmp_path / "full", "size=64k") as disk:
        with pytest.raises(OSError, match="No space left"):
            (disk / "fill").write_bytes(bytes(2**17))
        full = pytest.raises(OSError, match=r"No space left on device: '.*/one/lock'")
        with full, SweepFolder(disk / "one").locked():
            pass
        (disk / "fill").write_bytes(bytes(2**16 - 5 * 4096))  # leaves room for the lock but not for a record
        with (
            SweepFolder(disk / "one").locked(),
            pytest.raises(OSError, match=r"No space left on device: '.*/sweep.json"),
        ):
            SweepFolder(disk / "one").write_info(replace(sweep_info(name="one"), command="x" * 2**15))
    (tmp_path / "file").touch()
    assert "lock cannot be written and locked (File exists)" in refusal(tmp_path / "file")
    (tmp_path / "one" / "lock").mkdir(parents=True)
    assert "lock cannot be written and locked (Is a directory)" in refusal(tmp_path / "one")

    def fail(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", fail)
    assert "lock cannot be written and locked (No locks available)" in refusal(tmp_path / "two")


def test_a_damaged_record_of_the_sweep_is_named_with_what_saves_its_results(folder):
    for content in (b"", b"{", b"\xff", json.dumps({"format": FORMAT, "versions": None}).encode(), None):
        folder.info_file.unlink(missing_ok=True)
        if content is not None:
            folder.info_file.write_bytes(content)
        with pytest.raises(InputError, match=r"sweep.json: not readable .*; begin another sweep"):
            folder.info()


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("versions", None, "versions: must be a mapping such as {key: value} (nothing)"),
        ("work", {"tasks": "3"}, "work.tasks: must be a whole number ('3')"),
        ("objectives", [{"metric": "ece", "goal": "good"}], "objectives.goal: unknown goal 'good'"),
        ("objectives", [{"goal": "max"}], "objectives: needs the key 'metric'"),
        ("reference", [1.0], "reference: has 1 value for 2 objectives"),
        ("state", "done", "state: unknown state 'done'"),
        ("spent", 10**400, "spent: must be a number (1000"),
    ],
)
def test_a_record_with_wrong_types_is_refused_with_file_and_field(folder, field, value, complaint):
    document = json.loads(folder.info_file.read_text())
    folder.info_file.write_text(json.dumps({**document, field: value}))
    with pytest.raises(InputError) as refused:
        folder.info()
    assert str(refused.value).startswith(f"{folder.info_file}: not readable as a record of a sweep (")
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_record_is_read_again_only_after_it_was_written_again(folder):
    first = folder.trial("trial-0000")
    assert folder.trial("trial-0000") is first
    other = pickle.loads(pickle.dumps(folder))
    assert other.trial("trial-0000") == first is not other.trial("trial-0000")
    other.write_trial(replace(first, values=[50.0, 9.0]))
    assert folder.trial("trial-0000").values == [50.0, 9.0]
    file = folder.trial_file("trial-0000")
    file.write_bytes(b"{" * file.stat().st_size)
    with pytest.raises(InputError, match="not readable"):
        folder.trial("trial-0000")
    file.unlink()
    with pytest.raises(InputError, match="not readable"):
        folder.trial("trial-0000")


def test_the_log_and_the_prompts_of_a_trial_come_from_its_artifacts(folder):
    name = "trial-0000"
    assert (folder.last_log_lines(name, 2), folder.prompt_files(name)) == ([], [])
    artifacts = folder.path / "artifacts" / name
    (artifacts / "prompts").mkdir(parents=True)
    (artifacts / "log.txt").write_text("one\ntwo\nthree\n")
    prompts = [artifacts / "prompts" / f"{dataset}.seed0.safetensors" for dataset in ("digits", "scenes")]
    for file in (*prompts, artifacts / "prompts" / "notes.txt"):
        file.touch()
    assert folder.last_log_lines(name, 2) == ["two", "three"]
    assert folder.prompt_files(name) == prompts


@each_record
def test_a_record_that_cannot_be_written_completely_stays_unchanged(folder, monkeypatch, write, read):
    def report_full_disk(descriptor):
        raise OSError(28, "No space left on device")

    before, files = read(folder), set(folder.path.rglob("*"))
    monkeypatch.setattr("os.fsync", report_full_disk)
    with pytest.raises(OSError, match="No space left"):
        write(folder, 5.0)
    assert read(folder) == before
    assert set(folder.path.rglob("*")) == files


@each_record
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_infinity_are_not_written(folder, write, read, value):
    """Readers of JSON other than Python's refuse a file that contains NaN."""
    before = read(folder)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(folder, value)
    assert read(folder) == before


@pytest.mark.parametrize("read", [SweepFolder.info, SweepFolder.trials], ids=RECORDS)
@pytest.mark.parametrize(
    ("format", "complaint"),
    [
        ({"format": FORMAT + 1}, "another version"),
        ({"format": 3}, "another version"),  # its fields had several names in the course of time
        ({}, "not readable as a record"),
    ],
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
