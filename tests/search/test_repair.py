"""The records and the study of a resumed sweep after real damage, with real Optuna."""

import json
import math
import os
import random
import shutil
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import waiting_record
from fpp_sweep.records.steering import Queue
from fpp_sweep.search import repair, samplers
from fpp_sweep.search.repair import repair_records
from fpp_sweep.search.study import SweepStudy
from fpp_sweep.search.study_file import load_study
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec import keys
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import FileTooLargeError
from fpp_sweep.sweep.resume import repair_folder
from tests.kit.names import ZERO_SHOT, named
from tests.kit.records import failed, sweep_info, trial
from tests.kit.rights import without_root_rights

SPACE = named("""
params:
  fpp.gamma2: {low: 0.1, high: 20, log: true}
  fpp.draws: {low: 2, high: 8, step: 2}
  method: [tpt, ctpt]
  adapt.penalty_weight: {low: 1, high: 30, when: {method: [ctpt]}}
points: [{fpp.gamma2: 1.0, method: ctpt}]
constraints: [{metric: accuracy, at_least: 40}]
search: {trials: 8, sampler: SAMPLER}
work: {datasets: [scenes], baselines: [zero_shot]}
""")
ENDS = ["complete", "failed", "complete", "stopped", "complete", "complete"]
OPTUNA_STATES = {"complete": TrialState.COMPLETE, "failed": TrialState.FAIL, "stopped": TrialState.PRUNED}
STATES = [OPTUNA_STATES[end] for end in ENDS]


def space_with_sampler(sampler="random"):
    return parse_space(SPACE.replace("SAMPLER", sampler), "space.yaml")


def start_sweep(path, sampler="random"):
    """Return the folder and the study of a driver while a trial runs."""
    space, folder = space_with_sampler(sampler), SweepFolder(path)
    folder.write_info(
        replace(sweep_info(name=path.name, state="running"), space=space.plain(), objectives=space.objectives)
    )
    baseline = space.baselines()[ZERO_SHOT]
    folder.write_trial(waiting_record(f"baseline-{ZERO_SHOT}", "baseline", baseline, origin="baseline"))
    study = SweepStudy(folder.study_file, path.name, space)
    for end in ENDS:
        record = next_record(study, end)
        folder.write_trial(record)
        study.tell(record)
    folder.write_trial(next_record(study, "running"))
    return folder, study


def write_killed_sweep(path, sampler="random"):
    """Return the folder of a sweep whose driver was killed while a trial ran."""
    folder, _ = start_sweep(path, sampler)
    return folder


def next_record(study, end):
    number, origin, params = study.ask()
    config = space_with_sampler().resolve(params)
    fields = {
        "origin": origin,
        "params": params,
        "config": config.flat(),
        "key": keys.config_key(config),
        "generation": study.generation(number),
    }
    if end != "complete":
        return failed(number, "why", state=end, **fields)
    accuracy, ece = 40.0 + len(repr(params)), 10.0 + params["fpp.gamma2"]
    return trial(number, accuracy, ece, constraints={"accuracy": -accuracy}, **fields)


@pytest.fixture(scope="module")
def undamaged_path(tmp_path_factory):
    return write_killed_sweep(tmp_path_factory.mktemp("whole") / "sweep").path


@pytest.fixture
def folder(undamaged_path, tmp_path):
    return SweepFolder(shutil.copytree(undamaged_path, tmp_path / "sweep"))


def repair_notes(folder, sampler="random"):
    return list(repair_records(folder, folder.info(), space_with_sampler(sampler)))


def study_trials(folder):
    """Return the study's trials, without Optuna's own times and ids."""
    study = load_study(folder.study_file, "sweep")
    assert study.metric_names == ["accuracy", "ece"]
    fields = attrgetter("number", "state", "params", "distributions", "values", "user_attrs", "constraints")
    return [fields(trial) for trial in study.trials]


def next_driver(folder, sampler="random"):
    """Return the study of the next driver."""
    return SweepStudy(folder.study_file, "sweep", space_with_sampler(sampler), records=folder.trials())


def scribble(file, seed=0):
    content = bytearray(file.read_bytes())
    start = len(content) // 3
    content[start : start + 4000] = random.Random(seed).randbytes(4000)
    file.write_bytes(content)


def remove_a_line(file):
    lines = file.read_text().splitlines(keepends=True)
    del lines[len(lines) // 2]
    file.write_text("".join(lines))


def write_study_of_another_sweep(file):
    SweepStudy(file, "other", space_with_sampler())


def write_study_with_other_directions(file):
    space = parse_space(f"{SPACE.replace('SAMPLER', 'random')}\nobjectives: [ece, brier]", "space.yaml")
    SweepStudy(file, "sweep", space)


def write_study_of_another_space(file):
    space = parse_space(named("params: {method: [tpt, otpt]}\nwork: {datasets: [scenes]}"), "space.yaml")
    study = SweepStudy(file, "sweep", space)
    for _ in range(9):
        study.ask()


STUDY_DAMAGES = {
    "empty": lambda file: os.truncate(file, 0),
    "a part of the first line": lambda file: os.truncate(file, 30),
    "cut": lambda file: os.truncate(file, file.stat().st_size // 2),
    "random inside": scribble,
    "a line": remove_a_line,
    "huge": lambda file: os.truncate(file, 2**40),
    "random": lambda file: file.write_bytes(random.Random(1).randbytes(50_000)),
    "missing": lambda file: file.unlink(),
    "of another sweep": write_study_of_another_sweep,
    "of other directions": write_study_with_other_directions,
    "of another space": write_study_of_another_space,
}


@pytest.mark.parametrize("damage", STUDY_DAMAGES.values(), ids=STUDY_DAMAGES)
def test_a_driver_builds_the_study_from_the_records_whatever_the_damage(folder, damage):
    wanted = study_trials(folder)
    assert [state for _, state, *_ in wanted] == [*STATES, TrialState.RUNNING]
    damage(folder.study_file)
    assert repair_notes(folder) == []
    next_driver(folder)
    assert study_trials(folder) == wanted


def test_a_study_that_is_too_large_is_not_read(folder):
    os.truncate(folder.study_file, 2**27)
    with pytest.raises(FileTooLargeError):
        load_study(folder.study_file, "sweep")


def test_a_dashboard_reads_the_study_while_a_driver_writes_it(folder):
    driver = next_driver(folder)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder.study_file)))
    dashboard = optuna.load_study(study_name="sweep", storage=storage)
    number, _, settings = driver.ask()
    assert dashboard.trials[number].params == settings
    with folder.study_file.open("a") as file:
        file.write('{"op_code": 4, ')  # the beginning of a line that is being written
    assert len(dashboard.trials) == number + 1


def modification_times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.is_file()}


def test_repair_leaves_undamaged_files_unchanged(folder):
    before = modification_times(folder)
    assert repair_notes(folder) == []
    assert modification_times(folder) == before


@pytest.mark.parametrize("seed", range(6))
def test_a_lost_record_is_restored_or_drawn_anew_for_any_damaged_bytes_of_the_study(folder, seed):
    wanted = study_trials(folder)
    folder.trial_file("trial-0002").unlink()
    choice = random.Random(seed)
    content = bytearray(folder.study_file.read_bytes())
    for _ in range(choice.choice([1, 20, 400])):
        content[choice.randrange(len(content))] = choice.randrange(256)
    folder.study_file.write_bytes(content)
    repair_notes(folder)
    study = next_driver(folder)
    assert study.unfinished()[0] == 2
    assert [trial for trial in study_trials(folder)[:7] if trial[0] != 2] == [
        trial for trial in wanted if trial[0] != 2
    ]


@pytest.mark.parametrize("lost_numbers", [(2,), (4,), (5,), (6,), (4, 5), (5, 6)], ids=str)
@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_lost_record_never_gets_the_settings_of_another_trial_if_the_study_lost_a_line(
    folder, is_resumed, lost_numbers
):
    """A driver that resumes writes each earlier trial as one line, so that a lost line changes the numbers after it."""
    wanted = study_trials(folder)
    if is_resumed:
        next_driver(folder)
    lines = folder.study_file.read_text().splitlines(keepends=True)
    contents = {}
    for number in lost_numbers:
        file = folder.trial_file(f"trial-{number:04d}")
        contents[file] = number, file.read_bytes()
    outcomes = set()
    for lost_line in range(len(lines)):
        for file in contents:
            file.unlink(missing_ok=True)
        folder.study_file.write_text("".join(lines[:lost_line] + lines[lost_line + 1 :]))
        repair_notes(folder)
        for file, (number, content) in contents.items():
            is_restored = file.exists()
            if is_restored:
                assert folder.trial(file.stem).params == wanted[number][2], lines[lost_line]
            outcomes.add(is_restored)
            file.write_bytes(content)
    assert outcomes == {True, False}


def test_a_trial_with_a_huge_number_is_set_aside_or_not_restored(folder):
    """A study is built with a trial for each number, so that this would take hours."""
    huge = 10**12
    file = folder.trial_file(f"trial-{huge}")
    document = json.loads(folder.trial_file("trial-0002").read_text())
    file.write_text(json.dumps(document | {"name": file.stem, "number": huge}))
    folder.study_file.write_text(folder.study_file.read_text().replace('"trial-0005"', f'"trial-{huge}"'))
    (note,) = repair_notes(folder)
    assert f"{file}: number: is far above the number of records ({huge}); kept as" in note
    assert [record.number for record in folder.trials() if record.kind == "trial"] == list(range(7))


CONTRADICTIONS = {
    "a baseline": {"kind": "baseline", "number": None, "config": {}},
    "an import": {"kind": "baseline", "number": None, "origin": "imported"},
    "a baseline with a number": {"kind": "baseline"},
    "a trial without one": {"number": None},
}


@pytest.mark.parametrize("change", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_record_whose_name_kind_and_number_disagree_is_set_aside_at_once(folder, change):
    """A name alone once made the repair try each number up to 10^11."""
    file = folder.trial_file("trial-99999999999")
    document = json.loads(folder.trial_file("trial-0002").read_text())
    file.write_text(json.dumps(document | {"name": file.stem, "number": 99999999999} | change))
    (note,) = repair_notes(folder)
    assert "kept as trial-99999999999.json.damaged-" in note
    assert "trial-0002" in [record.name for record in folder.trials()]


def test_the_numbers_of_names_are_bounded_whatever_record_they_are_of(folder, monkeypatch):
    """The loop over numbers does not rely on the checks of records."""
    monkeypatch.setattr(repair, "_check_record", lambda *_: None)
    monkeypatch.setattr(repair, "MAX_LOST", 3)
    document = json.loads(folder.trial_file("trial-0002").read_text())
    file = folder.trial_file("trial-99999999999")
    file.write_text(json.dumps(document | {"name": file.stem, "kind": "baseline", "number": None}))
    assert len(repair_notes(folder)) <= 12


BASELINE_DAMAGES = {
    "config of another": {"config": {"method": "zero_shot", "anchor_prompt": "/etc/passwd"}},
    "an import that can run": {"origin": "imported", "state": "complete", "config": {"anchor_prompt": "/etc/passwd"}},
    "a number": {"number": 0},
}


@pytest.mark.parametrize("change", BASELINE_DAMAGES.values(), ids=BASELINE_DAMAGES)
def test_a_baseline_with_another_config_is_set_aside(folder, change):
    file = folder.trial_file(f"baseline-{ZERO_SHOT}")
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    first, second = repair_notes(folder)
    assert f"kept as {file.name}.damaged-" in first
    assert second == f"baseline-{ZERO_SHOT} has no usable record; it is run again"


def test_a_command_repairs_a_folder_by_the_space_that_is_recorded_there(folder, capsys):
    file = folder.trial_file(f"baseline-{ZERO_SHOT}")
    file.write_text("no record")
    repair_folder(folder)
    assert f"baseline-{ZERO_SHOT} has no usable record; it is run again" in capsys.readouterr().err


def test_an_import_with_a_setting_is_set_aside(folder):
    """The config of a real import names its file only; a setting could be run."""
    measured = next(record for record in folder.trials() if record.state == "complete")
    document = json.loads(folder.trial_file(measured.name).read_text())
    file = folder.trial_file("baseline-theirs")
    document |= {"name": "baseline-theirs", "kind": "baseline", "number": None, "origin": "imported"}
    file.write_text(json.dumps(document | {"config": {"file": "theirs.csv"}}))
    assert not any("theirs" in note for note in repair_notes(folder))
    file.write_text(json.dumps(document | {"config": {"file": "theirs.csv", "method": "tpt"}}))
    (note,) = [note for note in repair_notes(folder) if "theirs" in note]
    assert "an import is a complete baseline without settings" in note


def test_a_baseline_that_is_no_longer_requested_keeps_its_record_unless_its_config_differs(folder):
    space = replace(space_with_sampler(), constraints=())
    without = replace(space, work=replace(space.work, baselines=("tpt",)))
    assert list(repair_records(folder, folder.info(), without)) == []
    unknown = folder.trial_file("baseline-mine")
    document = json.loads(folder.trial_file(f"baseline-{ZERO_SHOT}").read_text())
    unknown.write_text(json.dumps(document | {"name": "baseline-mine"}))
    (note,) = repair_records(folder, folder.info(), without)
    assert f"{unknown}: name: is not that of a baseline of this package (baseline-mine); kept as" in note


def test_a_setting_that_an_older_version_did_not_record_counts_as_its_default(folder):
    document = json.loads(folder.trial_file("trial-0002").read_text())
    del document["config"]["measure.views"]
    document["key"] = keys.digest(document["config"], length=keys.CONFIG_LENGTH)
    folder.trial_file("trial-0002").write_text(json.dumps(document))
    assert repair_notes(folder) == []


NO_POINTS = {
    "text": {"fpp.gamma2": "2"},
    "a list": {"fpp.gamma2": [1]},
    "nothing": {"fpp.gamma2": None},
    "huge": {"fpp.gamma2": 10**400},
    "a switch": {"fpp.draws": True},
    "outside": {"fpp.gamma2": 99},
    "an unknown setting": {"more": 1},
    "empty": {},
}


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_a_folder_or_pipe_instead_of_the_study_is_set_aside(folder, make):
    file = folder.study_file
    file.unlink()
    make(file)
    (text,) = [text for text in repair_notes(folder) if "study.journal" in text]
    assert text.startswith(f"{file}: not a regular file; kept as study.journal.damaged-")
    assert not file.exists()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_a_folder_or_pipe_instead_of_a_record_is_set_aside(folder, make):
    file = folder.trial_file("trial-0002")
    file.unlink()
    make(file)
    text = repair_notes(folder)[0]
    assert text.startswith(f"{file}: not readable as a record of a sweep (not a regular file); kept as ")
    assert file.is_file()  # restored from the study


def test_a_record_that_may_not_be_read_stays_and_ends_the_repair(folder):
    """The record may be sound, so --resume is no remedy: it is what the user called."""
    file = folder.trial_file("trial-0002")
    file.chmod(0)
    with without_root_rights(), pytest.raises(InputError) as refused:
        repair_notes(folder)
    assert str(refused.value) == f"{file}: Permission denied; allow this user to read and write it"
    assert file.is_file()


def test_a_sweeps_record_that_may_not_be_read_is_not_replaced_by_its_copy(folder):
    folder.info_file.chmod(0)
    content = folder.info_file.read_text()
    with without_root_rights(), pytest.raises(InputError, match=r"sweep\.json: Permission denied; allow"):
        repair_folder(folder)
    assert folder.info_file.read_text() == content


@pytest.mark.parametrize("values", NO_POINTS.values(), ids=NO_POINTS)
@pytest.mark.parametrize("is_applied", [False, True])
def test_an_added_point_that_no_trial_can_have_is_set_aside(folder, values, is_applied):
    command = folder.send_command("add", values)
    if is_applied:
        folder.record_applied(command, "trial-0007", 7)
    (note,) = repair_notes(folder)
    assert f"{command.name}.json: " in note
    assert "values" in note
    assert note.endswith(", and not applied")
    study = SweepStudy(folder.study_file, "sweep", space_with_sampler(), folder_queue(folder), folder.trials())
    assert study.ask()[1] == "sampled"


def test_an_added_point_that_the_space_holds_is_kept(folder):
    folder.record_applied(folder.send_command("add", {"fpp.gamma2": 2, "method": "tpt"}), "trial-0007", 7)
    assert repair_notes(folder) == []
    number, origin, settings = SweepStudy(
        folder.study_file, "sweep", space_with_sampler(), folder_queue(folder), folder.trials()
    ).ask()
    assert (number, origin, settings["fpp.gamma2"], settings["method"]) == (7, "added", 2, "tpt")


def folder_queue(folder):
    return Queue.of(folder, folder.info())


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2"])
def test_a_resumed_study_asks_for_the_same_next_trial(tmp_path, sampler, monkeypatch):
    monkeypatch.setattr(samplers, "POPULATION_SIZE", 2)
    monkeypatch.setattr(samplers, "TPE_STARTUP_TRIALS", 3)
    folder, undisturbed = start_sweep(tmp_path / "sweep", sampler)
    resumed = next_driver(SweepFolder(shutil.copytree(folder.path, tmp_path / "copy")), sampler)
    assert resumed.ask() == undisturbed.ask()


RECORD_DAMAGES = {
    "cut": lambda document: json.dumps(document)[:200],
    "not UTF-8": lambda document: json.dumps(document).encode()[:-1] + b"\xff}",
    "no object": lambda document: "[]",
    "deep": lambda document: "[" * 100_000,
    "too large": lambda document: " " * 2**25 + json.dumps(document),
    "no number": lambda document: json.dumps({**document, "values": [1.0, float("nan")]}),
    "endless number": lambda document: json.dumps({**document, "started": math.inf}).replace("Infinity", "1e999"),
    "too few values": lambda document: json.dumps({**document, "values": [1.0]}),
    "no values": lambda document: json.dumps({**document, "values": None}),
    "no results": lambda document: json.dumps({**document, "results": {}}),
    "results of a list": lambda document: json.dumps({**document, "results": []}),
    "results of words": lambda document: json.dumps({**document, "results": {"val": "good"}}),
    "another's": lambda document: json.dumps({**document, "name": "trial-0004"}),
    "another's number": lambda document: json.dumps({**document, "number": 4}),
    "an unknown state": lambda document: json.dumps({**document, "state": "done"}),
    "params outside": lambda document: json.dumps({**document, "params": {**document["params"], "fpp.gamma2": 99.0}}),
    "params of words": lambda document: json.dumps({**document, "params": {**document["params"], "fpp.draws": "x"}}),
    "an unknown setting": lambda document: json.dumps({**document, "config": {"fpp.gama": 1}}),
    "config of another": lambda document: json.dumps({**document, "config": {**document["config"], "fpp.draws": 3}}),
    "key of another": lambda document: json.dumps({**document, "key": "0123456789ab"}),
    "no trial": lambda document: json.dumps({**document, "kind": "baseline", "number": None}),
    "without a number": lambda document: json.dumps({**document, "number": None}),
    "imported": lambda document: json.dumps({**document, "origin": "imported"}),
    "a field too many": lambda document: json.dumps({**document, "more": 1}),
    "deleted": None,
}


@pytest.mark.parametrize("damage", RECORD_DAMAGES.values(), ids=RECORD_DAMAGES)
def test_a_trial_without_a_record_is_run_again_with_the_settings_of_the_study(folder, damage):
    wanted, file = study_trials(folder), folder.trial_file("trial-0002")
    content = None
    if damage is not None:
        content = damage(json.loads(file.read_text()))
    file.unlink()
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    *damage_notes, rerun_note = repair_notes(folder)
    assert len(damage_notes) == (content is not None)
    for note in damage_notes:
        assert f"{file}: " in note
        assert "kept as trial-0002.json.damaged-" in note
        assert len(note) < 900
    assert rerun_note == "trial-0002 has no usable record; it is run again, with the study's values"
    record = folder.trial("trial-0002")
    assert (record.state, record.number, record.params) == ("waiting", 2, wanted[2][2])
    assert list(record.params) == [param.key for param in space_with_sampler().params if param.key in record.params]
    assert record.config["fpp.gamma2"] == record.params["fpp.gamma2"]
    assert repair_notes(folder) == []
    assert next_driver(folder).unfinished() == [2, 6]
    rebuilt = study_trials(folder)
    assert rebuilt[2] == (*wanted[2][:1], TrialState.RUNNING, *wanted[2][2:4], None, {"name": "trial-0002"}, {})
    assert rebuilt[:2] + rebuilt[3:] == wanted[:2] + wanted[3:]


def test_a_restored_record_has_the_generation_of_nsga2(tmp_path, monkeypatch):
    monkeypatch.setattr(samplers, "POPULATION_SIZE", 2)
    folder = write_killed_sweep(tmp_path / "sweep", "nsga2")
    generations = [record.generation for record in folder.trials() if record.kind == "trial"]
    assert generations[-1] > 0
    folder.trial_file("trial-0004").unlink()
    repair_notes(folder, "nsga2")
    assert [record.generation for record in folder.trials() if record.kind == "trial"] == generations


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_trial_in_neither_records_nor_study_is_drawn_anew(tmp_path, sampler):
    """Settings from the queue and from the random sampler are drawn equal again; those of TPE may differ."""
    folder = write_killed_sweep(tmp_path / "sweep", sampler)
    wanted = study_trials(folder)
    os.truncate(folder.study_file, 3000)
    os.truncate(folder.trial_file("trial-0001"), 5)
    folder.trial_file("trial-0004").unlink()
    notes = repair_notes(folder, sampler)
    lost = "has no usable record; it is run again, with values drawn anew, as the study lacks it, too"
    assert [note for note in notes if note.startswith("trial")] == [f"trial-0001 {lost}", f"trial-0004 {lost}"]
    study = next_driver(folder, sampler)
    assert study.unfinished() == [1, 4, 6]
    (_, _, first), (_, _, second) = study.ask_again(1), study.ask_again(4)
    assert first == wanted[1][2]
    assert second == wanted[4][2] or sampler == "tpe"
    assert study.ask()[0] == 7


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_trial_whose_driver_was_killed_before_its_first_record(folder, is_complete):
    """If the study has all settings, the trial is restored; otherwise the next trial gets its number and settings."""
    wanted = study_trials(folder)[6][2]
    folder.trial_file("trial-0006").unlink()
    if not is_complete:
        lines = folder.study_file.read_text().splitlines(keepends=True)
        (last,) = [number for number, line in enumerate(lines) if '"trial_id": 6, "param_name": "method"' in line]
        folder.study_file.write_text("".join(lines[:last]))
    notes = repair_notes(folder)
    assert len(notes) == is_complete
    if is_complete:
        assert folder.trial("trial-0006").params == wanted
    else:
        number, _, params = next_driver(folder).ask()
        assert (number, params) == (6, wanted)


def test_a_baseline_without_a_record_is_reported(folder):
    folder.trial_file(f"baseline-{ZERO_SHOT}").unlink()
    assert repair_notes(folder) == [f"baseline-{ZERO_SHOT} has no usable record; it is run again"]


def test_a_baseline_that_a_resume_adds_has_lost_no_record(folder):
    space = space_with_sampler()
    with_tpt = replace(space, work=replace(space.work, baselines=(ZERO_SHOT, "tpt")))
    assert list(repair_records(folder, folder.info(), with_tpt)) == []


def test_a_sweep_that_ended_before_its_first_trial_needs_no_repair(folder):
    shutil.rmtree(folder.path / "trials")
    folder.study_file.unlink()
    assert repair_notes(folder) == []


def test_a_record_that_the_disk_cannot_read_is_not_treated_as_damaged(folder):
    file = folder.trial_file("trial-0002")
    file.unlink()
    file.symlink_to(file)  # a loop of links cannot be read, not even by root
    with pytest.raises(InputError, match="Too many levels"):
        repair_notes(folder)
    assert not list(folder.path.rglob("*.damaged-*"))
    assert study_trials(folder)[-1][1] == TrialState.RUNNING
