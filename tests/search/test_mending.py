"""Records and study after real damage: each is made again from the other, in real Optuna, and what is lost is said."""

import json
import os
import random
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import optuna
import pytest
from optuna.trial import TrialState

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import TrialRecord
from fpp_sweep.search.repair import mend
from fpp_sweep.search.study import SweepStudy
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.errors import InputError
from tests.names import PLAIN, named
from tests.sweeps import split_result, sweep_info

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
ATTRIBUTES = ("user_attrs", "constraints")
ENDS = ["complete", "failed", "complete", "stopped", "complete", "complete"]
STATES = [
    {"complete": TrialState.COMPLETE, "failed": TrialState.FAIL, "stopped": TrialState.PRUNED}[end] for end in ENDS
]


def space_of(sampler="random"):
    return parse_space(SPACE.replace("SAMPLER", sampler), "space.yaml")


def made(path, sampler="random", ends=ENDS):
    """A sweep whose driver was killed, with a trial that it had begun."""
    space, folder = space_of(sampler), SweepFolder(path)
    folder.write_info(replace(sweep_info(path.name, state="running"), space=space.plain(), objectives=space.objectives))
    folder.write_trial(TrialRecord(name=f"baseline-{PLAIN}", kind="baseline", state="waiting"))
    study = SweepStudy(folder.study_file, path.name, space)
    for end in ends:
        record = ended(study.ask(), end)
        folder.write_trial(record)
        study.tell(record)
    folder.write_trial(ended(study.ask(), "running"))
    return folder


def ended(asked, end):
    number, origin, params = asked
    record = TrialRecord(
        name=f"trial-{number:04d}", kind="trial", state=end, number=number, origin=origin, params=params, key="k"
    )
    if end != "complete":
        return replace(record, reason="why")
    values = [40.0 + len(repr(params)), 10.0 + params["fpp.gamma2"]]
    return replace(record, values=values, constraints={"accuracy": -values[0]}, results={"val": split_result(number)})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return made(tmp_path_factory.mktemp("whole") / "sweep").path


@pytest.fixture
def folder(whole, tmp_path):
    return SweepFolder(shutil.copytree(whole, tmp_path / "sweep"))


def mended(folder, sampler="random"):
    return list(mend(folder, folder.info(), space_of(sampler)))


def trials(folder):
    """What the study has, apart from its own clock and numbering."""
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{folder.study_file}")
    assert study.metric_names == ["accuracy", "ece"]
    return [
        tuple(getattr(trial, name) for name in ("number", "state", "params", "distributions", "values", *ATTRIBUTES))
        for trial in study.trials
    ]


def asked_next(folder, sampler="random"):
    study = SweepStudy(folder.study_file, "sweep", space_of(sampler))
    return [study.adopt(number) for number in study.unfinished()], study.ask()


def scribble(file, seed=0):
    content = bytearray(file.read_bytes())
    start = len(content) // 3
    content[start : start + 4000] = random.Random(seed).randbytes(4000)
    file.write_bytes(content)


def an_index(file):
    """Which is used only when a trial ends."""
    with closing(sqlite3.connect(file)) as study:
        (size,) = study.execute("PRAGMA page_size").fetchone()
        (page,) = study.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_trial_values_1'"
        ).fetchone()
    content = bytearray(file.read_bytes())
    content[page * size - 200 : page * size] = bytes(200)
    file.write_bytes(content)


def all_but_its_journal(file):
    """As a driver that is killed while it writes leaves it; SQLite would play it into whatever has the study's name."""
    journal = file.with_name("study.db-journal")
    with closing(sqlite3.connect(file, isolation_level=None)) as study:
        study.execute("DELETE FROM trial_params")  # what it would play
        study.execute("PRAGMA cache_size = 1")  # so that it is written out while the transaction is open
        study.execute("BEGIN IMMEDIATE")
        study.execute("INSERT INTO trial_params (trial_id, param_name) VALUES (1, 'x')")
        for table in ("trials", "trial_values", "trial_user_attributes"):
            study.execute(f"DELETE FROM {table}")
        content = journal.read_bytes()
        study.execute("ROLLBACK")
    assert int.from_bytes(content[8:12], "big") > 0  # pages that it holds
    journal.write_bytes(content)
    file.unlink()


def of_another_sweep(file):
    file.unlink()
    SweepStudy(file, "other", space_of())


def of_other_directions(file):
    file.unlink()
    space = parse_space(f"{SPACE.replace('SAMPLER', 'random')}\nobjectives: [ece, brier]", "space.yaml")
    SweepStudy(file, "sweep", space)


def of_another_space(file):
    file.unlink()
    space = parse_space(named("params: {method: [tpt, otpt]}\nwork: {datasets: [scenes]}"), "space.yaml")
    study = SweepStudy(file, "sweep", space)
    for _ in range(3):
        study.ask()


STUDIES = {
    "empty": lambda file: os.truncate(file, 0),
    "a header": lambda file: os.truncate(file, 100),
    "cut": lambda file: os.truncate(file, file.stat().st_size // 2),
    "random inside": scribble,
    "an index": an_index,
    "random": lambda file: file.write_bytes(random.Random(1).randbytes(50_000)),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "missing": lambda file: file.unlink(),
    "missing but for its journal": all_but_its_journal,
    "of another sweep": of_another_sweep,
    "of other directions": of_other_directions,
    "of another space": of_another_space,
}


@pytest.mark.parametrize("damage", STUDIES.values(), ids=STUDIES)
def test_a_study_is_made_again_from_the_records(folder, damage):
    wanted = trials(folder)
    assert [state for _, state, *_ in wanted] == [*STATES, TrialState.RUNNING]
    damage(folder.study_file)
    there = folder.study_file.exists()
    (note,) = mended(folder)
    assert note.startswith(f"{folder.study_file}: {'is of another sweep, other' if damage is of_another_sweep else ''}")
    assert "made again from the records, with 7 trials; what the sampler itself remembered is lost" in note
    assert trials(folder) == wanted
    assert len(list(folder.path.glob("study.db.damaged-*"))) == there
    assert mended(folder) == []


def test_what_is_whole_is_left_alone(folder, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.is_file()}
    assert mended(folder) == []
    assert {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.is_file()} == before
    assert mended(SweepFolder(shutil.copytree(folder.path, tmp_path / "moved" / "elsewhere"))) == []


@pytest.mark.parametrize("seed", range(12))
def test_whatever_byte_of_a_study_is_wrong_the_trials_are_what_the_records_say(folder, seed):
    wanted = trials(folder)
    for place in range(seed, seed + 4):
        content = bytearray(folder.study_file.read_bytes())
        choice = random.Random(place)
        for _ in range(choice.choice([1, 20, 400])):
            content[choice.randrange(len(content))] = choice.randrange(256)
        folder.study_file.write_bytes(content)
        mended(folder)
        assert [each[:3] + each[4:5] for each in trials(folder)] == [each[:3] + each[4:5] for each in wanted]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_the_next_trials_are_those_of_the_study_that_is_lost(tmp_path, sampler):
    folder = made(tmp_path / "sweep", sampler)
    copy = SweepFolder(shutil.copytree(folder.path, tmp_path / "copy" / "sweep"))
    copy.study_file.unlink()
    mended(copy, sampler)
    assert asked_next(copy, sampler) == asked_next(folder, sampler)


RECORDS = {
    "cut": lambda document: json.dumps(document)[:200],
    "not UTF-8": lambda document: json.dumps(document).encode()[:-1] + b"\xff}",
    "no object": lambda document: "[]",
    "deep": lambda document: "[" * 100_000,
    "too large": lambda document: " " * 2**25 + json.dumps(document),
    "no number": lambda document: json.dumps({**document, "values": [1.0, float("nan")]}),
    "endless number": lambda document: json.dumps(document).replace('"started": 0.0', '"started": 1e999'),
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
    "a field too many": lambda document: json.dumps({**document, "more": 1}),
    "deleted": None,
}


@pytest.mark.parametrize("damage", RECORDS.values(), ids=RECORDS)
def test_a_trial_without_a_record_is_run_again_with_what_the_study_has(folder, damage):
    wanted, file = trials(folder), folder.trial_file("trial-0002")
    content = damage and damage(json.loads(file.read_text()))
    file.unlink()
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    *first, again, study = mended(folder)
    assert [f"{file}: " in line and "kept as trial-0002.json.damaged-" in line for line in first] == [True] * (
        content is not None
    )
    assert len(max(first, default="")) < 900
    assert again == "trial-0002 has no usable record; it is run again, with the study's values"
    assert "study.db: says something else than the records" in study
    assert "lost" not in study
    left = trials(folder)
    assert left[2] == (*wanted[2][:1], TrialState.RUNNING, *wanted[2][2:4], None, {}, wanted[2][6])
    assert left[:2] + left[3:] == wanted[:2] + wanted[3:]
    assert mended(folder) == []
    ((number, _, values), _), _ = asked_next(folder)
    assert (number, values) == (2, wanted[2][2])


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_what_neither_has_is_run_again_and_drawn_anew(tmp_path, sampler):
    """As it was, where it came from the queue or from the random sampler."""
    folder = made(tmp_path / "sweep", sampler)
    wanted = trials(folder)
    os.truncate(folder.study_file, 3000)
    os.truncate(folder.trial_file("trial-0001"), 5)
    folder.trial_file("trial-0004").unlink()
    notes = mended(folder, sampler)
    lost = "has no usable record; it is run again, with values drawn anew, as the study lacks it, too"
    assert [note for note in notes if note.startswith("trial")] == [f"trial-0001 {lost}", f"trial-0004 {lost}"]
    adopted, (number, _, _) = asked_next(folder, sampler)
    drawn = {number: values for number, _, values in adopted}
    assert list(drawn) == [1, 4, 6]
    assert number == 7
    assert drawn[1] == wanted[1][2]
    assert drawn[4] == wanted[4][2] or sampler == "tpe"


def test_a_study_that_lacks_the_last_trials_gets_them(folder, tmp_path):
    wanted = trials(folder)
    folder.study_file.unlink()
    shutil.copyfile(made(tmp_path / "older" / "sweep", ends=ENDS[:3]).study_file, folder.study_file)
    assert "says something else" in mended(folder)[0]
    (running,) = [each for each in trials(folder) if each not in wanted]
    assert running[:4] == (3, TrialState.RUNNING, *wanted[3][2:4])  # whose end a driver tells when it starts


@pytest.mark.parametrize("change", ["trials SET state = 'FAIL'", "trial_values SET value = value + 1"])
def test_an_end_that_the_study_has_otherwise_is_what_the_records_say(folder, change):
    wanted = trials(folder)
    with closing(sqlite3.connect(folder.study_file)) as study:
        study.execute(f"UPDATE {change} WHERE trial_id = 3")
        study.commit()
    assert trials(folder) != wanted
    assert "says something else" in mended(folder)[0]
    assert trials(folder) == wanted


def test_a_baseline_without_a_record_is_noticed(folder):
    folder.trial_file(f"baseline-{PLAIN}").unlink()
    assert mended(folder) == [f"baseline-{PLAIN} has no usable record; it is run again"]


def test_a_sweep_that_was_ended_before_its_first_trial_lacks_nothing(folder):
    shutil.rmtree(folder.path / "trials")
    folder.study_file.unlink()
    assert mended(folder) == []


def test_a_study_that_another_process_holds_is_not_taken_for_damaged(folder):
    with closing(sqlite3.connect(folder.study_file)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(InputError, match=r"study.db: database is locked; end what else uses it"):
            mended(folder)
    assert mended(folder) == []


def test_a_record_that_the_disk_does_not_give_is_not_taken_for_damaged(folder):
    file = folder.trial_file("trial-0002")
    file.unlink()
    file.symlink_to(file)  # a loop: an error of the file system, for root, too
    with pytest.raises(InputError, match="Too many levels"):
        mended(folder)
    assert not list(folder.path.rglob("*.damaged-*"))
    assert trials(folder)[-1][1] == TrialState.RUNNING
