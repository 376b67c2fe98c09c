"""Malformed records: each is refused with its file and field as it is read, and every command then ends in one line."""

import json
import os
import shutil
import subprocess
from dataclasses import replace

import pytest

from fpp_sweep import compare, show, steer
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import MAX_TIME
from fpp_sweep.records.texts import format_setting
from fpp_sweep.report.settings_plots import metric_columns
from fpp_sweep.report.writing import write_report
from fpp_sweep.space.reading import load_space
from fpp_sweep.space.validation import MAX_DEPTH
from fpp_sweep.space.yamlfile import parse, read
from fpp_sweep.spec.errors import InputError
from fpp_sweep.sweep.summary import features_text
from fpp_sweep.tracking.folder_files import find_artifacts
from tests.kit.measured import FAR_APART, World, write_measured_sweep
from tests.kit.records import split_result, sweep_info, trial

TRIAL = "trial-0002"


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


BAD_NAMES = ("a/b", "../../x", "..", ".", "", "a\0")
NAME = "must be a name without '/' and zero bytes"
SPACE = [  # keys in sweep.json, value, complaint
    ("space.work.posthoc", 5, "must be a list"),
    ("space.work.posthoc", [5], "must be text"),
    ("space.work.datasets", True, "must be a list"),
    ("space.work.datasets", "abc", "must be a list"),
    ("space.work.columns", {}, "must be a list"),
    ("space.work.model", 0, "must be text"),
    ("space.work.data_root", [], "must be text"),
    ("space.work.seeds", 5, "must be a list"),
    ("space.work.seeds", [], "must have at least 1 entry"),
    ("space.work.seeds", ["0"], "must be a whole number"),
    ("space.work.cpus_per_worker", "x", "must be a number"),
    ("space.work.cpus_per_worker", 1e200, "a number must not be beyond 1e+100"),
    ("space.work", None, "must be a mapping"),
    ("space.search.floor", "x", "must be a number"),
    ("space.search.margin", True, "must be a mapping"),
    ("space.search.margin", {"ece": "x"}, "must be a number"),
    ("space.search.wall_clock", "x", "must be a number"),
    ("space.search.gpu_hours", [], "must be a number"),
    ("space.search.trials", 1.5, "must be a whole number"),
    ("space.search.trials", 10**30, "a whole one not beyond 2^63"),
    ("space.search.finalists", [], "must be a mapping"),
    ("space.search.finalists", {"seeds": "x"}, "must be a whole number"),
    ("space.search.evaluate_only", "x", "must be true or false"),
    ("space.search", None, "must be a mapping"),
    ("space.question", [], "must be text"),
    ("space.question", nested(900), "must not be nested more than 100 levels deep"),
    ("space.params", 5, "must be a mapping"),
    ("space.params", {"fpp.gamma2": {"low": "x", "high": 2.0}}, "must be a number"),
    ("space.base", nested(900), "must not be nested more than 100 levels deep"),
    ("space.constraints", 5, "must be a list"),
    ("space.constraints", [5], "must be a mapping"),
    ("space.constraints", [{"metric": 5, "at_most": 5.0}], "must be text"),
    ("space.constraints", [{"metric": "ece", "at_most": "x"}], "must be a number"),
    ("space.constraints", [{"at_most": 5.0}], "must be given"),
    ("initial_space.search", None, "must be a mapping"),
]
INFO = [
    *SPACE,
    *[(key, value, "must be") for key in ("created", "finished") for value in (-1, 1e14, 1e300, "x")],
    *[("datasets", {name: "0"}, NAME) for name in BAD_NAMES],
    *[("images", {name: "0"}, NAME) for name in BAD_NAMES],
    ("search_split", "other", "unknown split 'other'"),
    ("search_split", "", "unknown split ''"),
    ("spent", 1e200, "must be <= 1e+100"),
    ("reference", [1e308, 1.0], "must be <= 1e+100"),
    ("objectives", [], "must have at least 1 entry"),
    ("objectives", [{"metric": "ece/../x", "goal": "min"}], NAME),
    ("objectives", [{"metric": "ece/..", "goal": "min"}], NAME),
    ("objectives", [{"metric": "\0", "goal": "min"}], NAME),
]
TRIALS: list[tuple[str, object, str]] = [
    *[(key, value, "must be") for key in ("started", "finished") for value in (-1, 1e14, 1e300, "x")],
    *[(key, 1e308, "must be <= 1e+100") for key in ("values.0", "results.val.average.ece", "seconds_without_result")],
    ("values.0", -1e308, "must be >= -1e+100"),
    ("results.val.datasets.digits.ece", 1e308, "must be <= 1e+100"),
    ("results.val.seconds", {"evaluate": 1e308}, "must be <= 1e+100"),
    ("results.val.samples", -1, "must be >= 0"),
    ("results.val.samples", 10**30, "must be <= 9223372036854775807"),
    ("number", 10**30, "must be <= 9223372036854775807"),
    ("attempt", 10**30, "must be <= 9223372036854775807"),
    *[(f"results.val.{key}", {name: {"ece": 1.0}}, NAME) for key in ("datasets", "costs") for name in BAD_NAMES],
    *[("results.val.average", {name: 1.0}, NAME) for name in BAD_NAMES],
    *[("results.val.by_seed", {"0": {name: {"ece": 1.0}}}, NAME) for name in BAD_NAMES],
    *[("results.val.datasets", {"digits": {name: 1.0}}, NAME) for name in BAD_NAMES],
    ("params", {"fpp.gamma2": 10**59}, "a whole one not beyond 2^63"),
    ("params", {"fpp.gamma2": -1e308}, "a number must not be beyond 1e+100"),
    ("params", {"fpp.gamma2": [1.0]}, "must be text, true, false, none or a number"),
    ("config", {"method": []}, "must be text, true, false, none or a number"),
    ("config", {"method": nested(900)}, "must be text, true, false, none or a number"),
    ("config", {"method": {"a": 1}}, "must be text, true, false, none or a number"),
]
COMMANDS = {
    "show": lambda: show.main(["sent"]),
    "list": lambda: show.main([]),
    "trial": lambda: show.main(["sent", TRIAL]),
    "compare": lambda: compare.main(["sent", TRIAL, "trial-0003"]),
    "steer": lambda: steer.main(["sent", "budget", "--trials", "40"]),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """The folder of a valid sweep, which no test changes."""
    path = tmp_path_factory.mktemp("malformed") / "sent"
    write_measured_sweep(path, World(64), FAR_APART, splits=("val", "test"), space=load_space("perturb").plain())
    return path


@pytest.fixture
def sent(template, tmp_path, monkeypatch):
    """A copy of the sweep in `sweeps`, where commands find it by name."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(template, tmp_path / "sweeps/sent")
    return SweepFolder(tmp_path / "sweeps/sent")


def edit(file, path, value):
    """Set a value in a JSON document; the keys in the path are separated by dots."""
    document = json.loads(file.read_text())
    inner = document
    *steps, last = [int(step) if step.isdecimal() else step for step in path.split(".")]
    for step in steps:
        inner = inner[step]
    inner[last] = value
    file.write_text(json.dumps(document))


def refusal(read):
    with pytest.raises(InputError) as refused:
        read()
    return str(refused.value)


def require_one_line(command):
    """Run a command, which works or refuses in one line."""
    line = ""
    try:
        command()
    except InputError as error:
        line = str(error)
    assert "\n" not in line


def shown_cases(table):
    return [pytest.param(*case, id=ascii(f"{case[0]}-{case[1]}")[:60]) for case in table]


@pytest.mark.parametrize(("path", "value", "complaint"), shown_cases(INFO))
def test_a_malformed_record_of_the_sweep_is_refused_with_file_and_field(sent, path, value, complaint):
    edit(sent.info_file, "initial_space", json.loads(sent.info_file.read_text())["space"])
    edit(sent.info_file, path, value)
    line = refusal(sent.info)
    assert line.startswith(f"{sent.info_file}: not readable as a record of a sweep ({path.split('.')[0]}")
    assert complaint in line
    for command in COMMANDS.values():
        require_one_line(command)


@pytest.mark.parametrize(("path", "value", "complaint"), shown_cases(TRIALS))
def test_a_malformed_record_of_a_trial_is_refused_with_file_and_field(sent, path, value, complaint):
    file = sent.trial_file(TRIAL)
    edit(file, path, value)
    line = refusal(lambda: sent.trial(TRIAL))
    assert line.startswith(f"{file}: not readable as a record of a sweep ({path.split('.')[0]}")
    assert complaint in line
    for command in COMMANDS.values():
        require_one_line(command)


@pytest.mark.parametrize("split", BAD_NAMES)
def test_a_split_whose_name_would_lead_elsewhere_is_refused(sent, split):
    file = sent.trial_file(TRIAL)
    edit(file, "results", {split: json.loads(file.read_text())["results"]["val"]})
    assert NAME in refusal(lambda: sent.trial(TRIAL))


def test_values_at_the_bounds_are_accepted(sent):
    file = sent.trial_file(TRIAL)
    for path, value in (("finished", MAX_TIME), ("values.0", 1e100), ("values.1", -1e100), ("number", 2**63 - 1)):
        edit(file, path, value)
    edit(file, "results.val.datasets", {"...": {"ece@temperature_val": 1.0}, ".hidden": {}, "a b": {}})
    edit(file, "params", {"fpp.gamma2": 2**63 - 1, "method": "tpt", "x": None, "y": True, "z": -1e100})
    edit(sent.info_file, "space.base", nested(MAX_DEPTH - 1))
    edit(sent.info_file, "objectives.1.metric", "ece/digits")
    assert sent.trial(TRIAL).values == [1e100, -1e100]
    assert sent.info().objectives[1].metric == "ece/digits"
    show.main(["sent", TRIAL])


def test_no_record_is_written_that_could_not_be_read(sent):
    info = sweep_info(name="sent", space={"search": {"wall_clock": 1e200}})
    assert refusal(lambda: sent.write_info(info)).startswith("space.search: a number must not be beyond 1e+100")
    assert sent.info().name == "sent"


def test_a_command_to_a_sweep_is_refused_if_it_is_malformed(sent):
    command = sent.send_command("add", {"fpp.gamma2": 2.0})
    file = sent.command_files()[0]
    for path, value in (("written", 1e300), ("values", {"x": nested(900)}), ("values", {"x": 10**400})):
        sent.record_applied(command)
        edit(file, path, value)
        assert f"({path}" in refusal(lambda: sent.command(file))


def test_folders_that_are_nested_deeper_than_calls_can_be_are_walked(tmp_path):
    (tmp_path / "x").touch()
    folder = str(tmp_path)
    for _ in range(1200):
        folder += "/d"
        os.mkdir(folder)
    open(f"{folder}/file", "x").close()
    try:
        assert len(find_artifacts(SweepFolder(tmp_path), tmp_path).files) == 2
    finally:
        subprocess.run(["rm", "-r", tmp_path / "d"], check=True)  # neither pytest nor shutil can remove it


@pytest.mark.parametrize("text", ["[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900, "[" * 102 + "]" * 102])
def test_a_file_that_is_nested_too_deeply_is_refused_with_its_name(tmp_path, text):
    (tmp_path / "trial.json").write_text(text)
    assert refusal(lambda: read(tmp_path / "trial.json", "config")).endswith("nested too deeply, beyond 100 levels")
    assert str(parse("[" * 101 + "]" * 101, "x.yaml").plain()) == "[" * 101 + "]" * 101


def test_the_page_of_a_model_whose_name_no_file_can_hold_is_written(sent):
    edit(sent.info_file, "model", "\ud800")
    write_report(sent, pages=True)
    assert "# model \\ud800;" in (sent.report / "best/knee.yaml").read_text()
    assert format_setting("a\ud800 é") == "a\\ud800 é"


def test_trials_without_a_result_on_the_searched_split_have_no_averages(sent):
    info = sweep_info()
    elsewhere = trial(1, results={"test": split_result()})
    assert list(metric_columns(info, [trial(0), elsewhere])) == ["accuracy", "ece"]


def test_features_that_took_no_time_have_no_rate():
    for features in ({"images": 5.0}, {"images": 5.0, "tower": 0.0}, {"images": -5.0, "tower": 1.0}):
        assert features_text([trial(0, results={"val": replace(split_result(), features=features)})]) == ""
