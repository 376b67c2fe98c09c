"""What a sweep says at its end."""

from dataclasses import replace

import pytest

from fpp_sweep.space.reading import read_config
from fpp_sweep.spec.messages import runnable
from fpp_sweep.sweep.repeat import repeat_command
from fpp_sweep.sweep.summary import ending, failures, sentences
from tests.names import PLAIN, TPT
from tests.report.made import baseline, failed, info, trial, write

WORK = {"model": "ViT-B-16/openai", "data_root": "my data", "limit": 10, "threads": None, "workers": 2, "seeds": [0, 1]}
RAN = {"space": {"work": WORK}, "datasets": {"dtd": "1", "pets": "2"}, "plugins": {"mine": "0123"}}


def said(*records, **changes):
    return list(sentences(info(**changes), records, judged=False))


def test_a_trial_that_beats_every_baseline_is_named():
    records = (baseline(PLAIN, 60, 5), baseline(TPT, 65, 9), trial(0, 66, 4), trial(1, 70, 9.5))
    assert said(*records) == [
        "perturb-20261120-185232 is finished; trials: 2 complete.",
        "trial-0000 beats every baseline in accuracy and ece, on val.",
    ]
    assert said(*records, trial(2, 65, 3))[1].startswith("trial-0000, trial-0002 beat every baseline in")


def test_where_no_trial_beats_every_baseline_that_is_a_sentence_and_marks_are_not_left_alone():
    records = (baseline(PLAIN, 60, 3), baseline(TPT, 72, 9), trial(0, 71, 10), trial(1, 65, 5))
    assert said(*records)[1:] == [
        "No trial beats every baseline in accuracy and ece, on val.",
        f"trial-0000 (best accuracy, knee) is beaten by {TPT}.",
        f"The best accuracy is that of baseline {TPT}, 72.00.",
        f"The best ece is that of baseline {PLAIN}, 3.00.",
    ]


def test_where_no_trial_keeps_the_constraints_that_is_a_sentence():
    broken = trial(0, 71, 10, constraints={"accuracy": 0.5})
    sentence = "No trial that finished keeps all constraints: none is on the front."
    assert said(baseline(PLAIN, 60, 3), broken)[1:] == [sentence]
    assert sentence not in said(baseline(PLAIN, 60, 3), broken, trial(1, 65, 5))


def test_a_hypervolume_of_zero_explains_itself():
    (line,) = [line for line in said(trial(0, 55, 10)) if "ypervolume" in line]
    assert line == (
        "Hypervolume 0: no trial is better in every objective than the corner it is measured from, "
        "accuracy 60.00, ece 20.00."
    )
    assert not [line for line in said(trial(0, 61, 10)) if "ypervolume" in line]


@pytest.mark.parametrize("records", [(), (failed(0),), (baseline(TPT, 65, 9),)])
def test_where_nothing_came_out_nothing_is_claimed(records):
    (line,) = said(*records, state="interrupted", end_reason="2 trials in a row failed")
    assert line.startswith("perturb-20261120-185232 is interrupted (2 trials in a row failed); trials: ")


def test_failures_are_told_with_cause_traceback_and_command_and_many_in_brief(tmp_path):
    reason = "pets, pretraining, seed 1, worker 7 on here: FloatingPointError: not finite"
    records = [failed(number, reason, details="Traceback") for number in range(5)]
    folder = write(tmp_path, info(**RAN), records)
    lines = list(failures(folder, folder.info(), records))
    assert lines[:2] == [f"trial-0000 failed: {reason}", f"    traceback   {folder.artifacts('trial-0000')}/log.txt"]
    assert lines[-1] == f"and 2 more failed: {runnable(f'fpp-sweep show {folder.path}')}"
    command = lines[2].removeprefix("    repeat      ")
    assert command.startswith(runnable(f"fpp-sweep evaluate --config {folder.trial_file('trial-0000')} "))
    assert command.endswith(
        " --model ViT-B-16/openai --datasets pets --data-root 'my data' --limit 10 --seed 1 "
        "--set search.split=val work.threads=1 --plugin mine.py"
    )


def test_a_trial_is_repeated_on_all_that_it_ran_on_and_of_a_test_that_failed_on_the_test_split(tmp_path):
    whole = trial(0, test=True)
    tested = replace(whole, reason="on test: dtd, test samples 0..64, seed 0, worker 7 on here: OSError", details="T")
    folder = write(tmp_path, info(**RAN), [whole])
    again = repeat_command(folder, folder.info(), whole)
    assert " --seed 0 1 --set search.split=val " in again
    assert " --datasets dtd pets " in again
    again = repeat_command(folder, folder.info(), tested)
    assert " --seed 0 --set search.split=test " in again
    assert " --datasets dtd --data-root " in again
    assert list(failures(folder, folder.info(), [tested]))


def test_a_record_serves_as_a_config(tmp_path):
    record = trial(0, params={"fpp.class_var": 1e-05})
    folder = write(tmp_path, info(), [record])
    assert read_config(folder.trial_file("trial-0000")) == dict(record.config)


def test_sentences_come_first_then_the_table_then_what_to_open(tmp_path):
    folder = write(tmp_path, info(**RAN), [baseline(PLAIN, 60, 5), trial(0, 66, 4)])
    (folder.report / "best").mkdir(parents=True)
    for name in ("sweep.html", "best/knee.yaml"):
        (folder.report / name).touch()
    text = "\n".join(ending(folder))
    parts = [
        "is finished",
        "beats every baseline",
        "front of perturb",
        "\npage        file://",
        "\nuse it      ",
        "MLflow ",
    ]
    assert sorted(parts, key=text.index) == parts
    words = "--model ViT-B-16/openai --datasets dtd pets --data-root 'my data'"
    assert runnable(f"fpp-sweep evaluate --config {folder.report}/best/knee.yaml {words}\n") in text
