"""`import`: predictions from a file become a baseline like any other, or are refused in one line."""

import re
import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from pyarrow import parquet

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.records.records import TrialRecord
from fpp_sweep.report.progress import repeat_command
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import DatasetInfo
from fpp_sweep.statistics.posthoc import softmax
from fpp_sweep.trial.artifacts import write_artifacts
from fpp_sweep.trial.imported import read_rows
from fpp_sweep.trial.trial import DatasetResult, summarize, with_maps
from tests.kit.measured import corrected_differences
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.processes import ROOT
from tests.kit.records import RANGES, sweep_info, write_sweep

MAPS = ("temperature_val", "temperature_transfer", "isotonic")
SETS = ["lac_90", "aps_95"]
CLASSES = {"digits": ("zero", "one", "two"), "scenes": ("a beach", "a street", "a forest", "a field", "a lake")}
IMAGES = {"test": 120, "val": 90}
FILE_TOLERANCE = 1e-5  # predictions and logits in files have float32's precision


def predictions(dataset, split, seed):
    """Return predictions of made-up logits, in which the label's logit is raised."""
    generator = np.random.default_rng([seed, len(dataset), IMAGES[split]])
    size, classes = IMAGES[split], len(CLASSES[dataset])
    labels = np.random.default_rng([len(dataset), IMAGES[split]]).integers(0, classes, size)
    logits = generator.normal(size=(size, classes)).astype(np.float32)
    logits[np.arange(size), labels] += 1.5
    ids = [f"{split}/{dataset}-{index:03d}.jpg" for index in range(size)]
    probabilities = softmax(logits.astype(np.float64)).astype(np.float32)
    return Predictions.of(ids, labels, probabilities, {"logits": logits})


def write_trial_with_maps(folder, name, method, seed):
    """Write the artifacts of a trial on the test split with the sweep's post-hoc maps; return its record."""
    results = []
    for dataset, classes in CLASSES.items():
        info = DatasetInfo(
            name=dataset, split="test", group="custom", classes=classes, size=IMAGES["test"], digest="", images=""
        )
        measured = predictions(dataset, "test", seed)
        results.append(DatasetResult(dataset=info, seed=0, predictions=measured, prompt=None))
    validation = {(dataset, 0): predictions(dataset, "val", seed) for dataset in CLASSES}
    results = with_maps(MAPS, SETS, results, validation)
    write_artifacts(folder.artifacts(name), results, "test", name)
    result = summarize(results, [])
    config = TrialConfig(method=method, prompt="a photo of a").flat()
    values = [result.average["accuracy"], result.average["ece@temperature_val"]]
    return TrialRecord(
        name=name, kind="trial", state="complete", number=int(name[-1]), config=config,
        results={"test": result}, values=values, finished=1.0,
    )  # fmt: skip


@pytest.fixture
def sweep(finished, tmp_path, monkeypatch):
    """A copy of the finished sweep in `sweeps/ev` of the working folder."""
    monkeypatch.chdir(tmp_path)
    return SweepFolder(shutil.copytree(finished.path, tmp_path / "sweeps" / "ev"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished sweep with a zero-shot trial and a TPT trial."""
    work = {"seeds": [0], "posthoc": list(MAPS), "columns": SETS}
    info = sweep_info(
        name="ev",
        space={"params": RANGES, "search": {"evaluate_only": True}, "work": work},
        search_split="test",
        digests={f"{name} test": "digest" for name in CLASSES},
        reference=None,
    )
    ece_after_map = replace(info.objectives[1], metric="ece@temperature_val")
    folder = write_sweep(
        tmp_path_factory.mktemp("sweeps"), replace(info, objectives=(info.objectives[0], ece_after_map)), []
    )
    for name, method, seed in (("trial-0000", ZERO_SHOT, 1), ("trial-0001", TPT, 2)):
        folder.write_trial(write_trial_with_maps(folder, name, method, seed))
    return folder


def columns_of(seed=2, splits=("test", "val")):
    """Return the columns of a file that holds the predictions of trial-0001."""
    columns = {name: [] for name in ("id", "dataset", "split", "label", "logits")}
    for split in splits:
        for dataset in CLASSES:
            rows = predictions(dataset, split, seed)
            columns["id"] += rows.ids
            columns["dataset"] += [dataset] * len(rows)
            columns["split"] += [split] * len(rows)
            columns["label"] += rows.labels.tolist()
            columns["logits"] += rows.columns["logits"].tolist()
    return columns


def pad_rows(rows):
    width = max(len(row) for row in rows)
    return np.array([[*row, *[np.nan] * (width - len(row))] for row in rows])


def write_npz(path, columns):
    arrays = {name: np.array(values) for name, values in columns.items() if name not in ("logits", "probabilities")}
    for name in {"logits", "probabilities"} & set(columns):
        arrays[name] = pad_rows(columns[name])
    np.savez(path, **arrays)


def write_parquet(path, columns):
    parquet.write_table(pa.table(columns), path)


def run_import(file, name="theirs"):
    import_module("fpp_sweep.import").main([str(file), "--as", name, "--into", "ev"])


# --- accepted files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_npz, write_parquet], ids=lambda write: write.__name__)
def test_imported_predictions_of_a_trial_have_the_numbers_of_the_trial(sweep, tmp_path, write, capsys):
    file = tmp_path / f"theirs.{write.__name__.removeprefix('write_')}"
    write(file, columns_of())
    run_import(file)
    assert "imported    baseline-theirs: 240 images of test" in capsys.readouterr().out
    theirs, own = sweep.trial("baseline-theirs"), sweep.trial("trial-0001")
    assert set(theirs.results["test"].average) == set(own.results["test"].average)
    assert "lac_90_size" in own.results["test"].average
    for metric, value in own.results["test"].average.items():
        assert theirs.results["test"].average[metric] == pytest.approx(value, abs=FILE_TOLERANCE), metric
    samples = statistics_of(sweep, sweep.info(), sweep.trials()).splits["test"].samples
    for difference in corrected_differences(
        samples, [("trial-0001", "baseline-theirs")], ["accuracy", "ece@temperature_val"]
    ):
        assert difference.value == pytest.approx(0, abs=FILE_TOLERANCE)
    to_own, to_theirs = corrected_differences(
        samples, [("trial-0000", "trial-0001"), ("trial-0000", "baseline-theirs")], ["accuracy"]
    )
    assert to_theirs.value == to_own.value != 0
    assert to_theirs.standard_error == to_own.standard_error


def test_a_file_may_have_probabilities_instead_of_logits(sweep, tmp_path):
    columns = columns_of()
    columns["probabilities"] = [softmax(np.array([row]))[0].tolist() for row in columns.pop("logits")]
    write_parquet(tmp_path / "theirs.parquet", columns)
    run_import(tmp_path / "theirs.parquet")
    theirs, own = (sweep.trial(name).results["test"].average for name in ("baseline-theirs", "trial-0001"))
    for metric in (
        "accuracy",
        "ece",
        "nll",
        "ece@temperature_val",
    ):  # dividing log p by T has the effect of dividing the logits by T
        assert theirs[metric] == pytest.approx(own[metric], abs=FILE_TOLERANCE)


def test_tables_the_page_and_show_contain_an_import(sweep, tmp_path, capsys):
    write_npz(tmp_path / "theirs.npz", columns_of())
    run_import(tmp_path / "theirs.npz")
    assert "theirs" in (sweep.report / "front.csv").read_text()
    assert "baseline-theirs" in (sweep.report / "sweep.html").read_text()
    assert [record.label for record in front_of(sweep.info(), sweep.trials()).baselines] == ["theirs"]
    capsys.readouterr()
    import_module("fpp_sweep.show").main(["ev", "baseline-theirs"])
    shown = capsys.readouterr().out
    assert f"file = {tmp_path / 'theirs.npz'}" in shown
    assert "imported" in shown
    command = repeat_command(sweep, sweep.info(), sweep.trial("baseline-theirs"))
    assert f"import {tmp_path / 'theirs.npz'} --as theirs --into {sweep.path}" in command


def test_one_dataset_and_split_need_no_columns_for_them(sweep, tmp_path):
    keep_first_objectives(sweep, 1)
    sweep.write_info(replace(sweep.info(), digests={"digits test": "digest"}))
    of_digits = predictions("digits", "test", 2)
    np.savez(tmp_path / "theirs.npz", id=np.array(of_digits.ids), logits=of_digits.columns["logits"])
    run_import(tmp_path / "theirs.npz")
    result = sweep.trial("baseline-theirs").results["test"]
    assert result.average["accuracy"] == sweep.trial("trial-0001").results["test"].datasets["digits"]["accuracy"]
    assert result.notes == [
        f"{name} on test is left out: the file has no predictions of split val"
        for name in ("temperature_val", "temperature_transfer", "isotonic", *SETS)
    ]


def test_the_recipes_of_the_page_write_files_that_are_imported(sweep, tmp_path, monkeypatch):
    page = (ROOT / "docs/import.md").read_text()
    names, one = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    path = sweep.artifacts("trial-0001") / "test/digits.seed0.predictions.parquet"
    recipe_names = {}
    exec(names.replace("sweeps/NAME/artifacts/TRIAL/test/dtd.seed0.predictions.parquet", str(path)), recipe_names)
    assert recipe_names["classes"] == list(CLASSES["digits"])
    tests = {dataset: predictions(dataset, "test", 2) for dataset in CLASSES}
    vals = {dataset: predictions(dataset, "val", 2) for dataset in CLASSES}
    assert sorted(recipe_names["names"]) == sorted(tests["digits"].ids)

    paths = [f"DATA/dtd/images/{name}" for part in tests.values() for name in part.ids]
    parts = {dataset: part.columns["logits"] for dataset, part in tests.items()}
    recipe = {"paths": paths, "logits": [part.columns["logits"] for part in tests.values()][:1]}
    exec(one, recipe)
    assert np.load("theirs.npz")["id"][0] == tests["digits"].ids[0]
    widest = max(part.shape[1] for part in parts.values())
    rows = [np.pad(part, ((0, 0), (0, widest - part.shape[1])), constant_values=np.nan) for part in parts.values()]
    datasets = np.concatenate([[name] * len(part) for name, part in parts.items()])
    np.savez("theirs.npz", id=np.load("theirs.npz")["id"], dataset=datasets, logits=np.concatenate(rows))
    keep_first_objectives(sweep, 1)
    run_import("theirs.npz", "arrays")

    frames = {}
    for split, of_split in (("test", tests), ("val", vals)):
        frames[split] = pandas.concat([frame_of(dataset, part) for dataset, part in of_split.items()])
    frames["test"]["split"], frames["val"]["split"] = "test", "val"
    pandas.concat([frames["test"], frames["val"]]).to_parquet("theirs.parquet", index=False)
    run_import("theirs.parquet", "table")
    for name in ("baseline-arrays", "baseline-table"):
        average = sweep.trial(name).results["test"].average
        assert average["accuracy"] == sweep.trial("trial-0001").results["test"].average["accuracy"]
    assert "ece@temperature_val" in average


def frame_of(dataset, part):
    probabilities = softmax(part.columns["logits"].astype(float))
    return pandas.DataFrame({"id": part.ids, "dataset": dataset, "probabilities": list(probabilities)})


def keep_first_objectives(sweep, count):
    """Remove all objectives of a sweep after the first `count`."""
    sweep.write_info(replace(sweep.info(), objectives=sweep.info().objectives[:count]))
    for number in (0, 1):
        record = sweep.trial(f"trial-000{number}")
        sweep.write_trial(replace(record, values=record.values[:count]))


# --- refused files ----------------------------------------------------------------------------------


def change_value(name, row, value):
    def change(columns):
        columns[name][row] = value

    return change


def repeat_first_row(columns):
    for values in columns.values():
        values.append(values[0])


def remove_fourth_row(columns):
    for values in columns.values():
        del values[3]


def remove_column(name):
    def change(columns):
        del columns[name]

    return change


def rename_logits_to_probabilities(columns):
    columns["probabilities"] = columns.pop("logits")


def use_probabilities_that_sum_to_101_percent(columns):
    columns["probabilities"] = [[1.01 / len(row)] * len(row) for row in columns.pop("logits")]


def remove_last_class(columns):
    columns["logits"] = [row[:-1] for row in columns["logits"]]


def keep_test(columns):
    rows = [row for row, split in enumerate(columns["split"]) if split == "test"]
    for name, values in columns.items():
        columns[name] = [values[row] for row in rows]


WRONG_FILES = {
    "duplicate": (repeat_first_row, "digits, split test, seed 0: sample 'test/digits-000.jpg' appears more than once"),
    "unknown": (
        change_value("id", 0, "cat.jpg"),
        "unknown sample 'cat.jpg'; the sweep has 120 samples, such as 'test/dig",
    ),
    "missing": (remove_fourth_row, "lacks 1 of 120 samples, first 'test/digits-003.jpg'; add them"),
    "label": (change_value("label", 0, 7), "sample 'test/digits-000.jpg' has label 7, in the sweep [012] "),
    "nan": (
        change_value("logits", 1, [0.0, np.nan, 1.0]),
        "sample 'test/digits-001.jpg': logits of class 1 is nan, must",
    ),
    "infinite": (change_value("logits", 1, [0.0, -np.inf, 1.0]), "class 1 is -inf, must be a finite float32"),
    "too large": (change_value("logits", 1, [0.0, -1e39, 1.0]), r"class 1 is -1e\+39, must be a finite float32"),
    "classes": (remove_last_class, "digits, split test, seed 0: has 2 classes, the sweep has 3, from 'zero' to 'two'"),
    "range": (
        rename_logits_to_probabilities,
        "probabilities must be >= 0 and sum to 1 .*; apply a softmax first, or name the values logits",
    ),
    "sum": (
        use_probabilities_that_sum_to_101_percent,
        "sample 'test/digits-000.jpg': probabilities must be >= 0 and sum to 1 .the sum is 1.01",
    ),
    "dataset": (change_value("dataset", 0, "digit"), "unknown dataset 'digit', did you mean 'digits'?"),
    "no dataset": (remove_column("dataset"), r"no column `dataset`, and the sweep has 2 \(digits, scenes\); add it"),
    "no id": (remove_column("id"), "has no column `id`"),
    "no values": (remove_column("logits"), r"must have either logits or probabilities \(neither\)"),
    "split": (change_value("split", 0, "train"), "lacks dataset scenes of split train, seed 0; add its rows"),
    "objective": (keep_test, "objective 'ece@temperature_val': was not measured"),
}


@pytest.mark.parametrize("kind", WRONG_FILES)
def test_a_wrong_file_is_refused_and_changes_nothing(sweep, tmp_path, kind):
    change, message = WRONG_FILES[kind]
    columns = columns_of()
    change(columns)
    write_parquet(tmp_path / "theirs.parquet", columns)
    before = sorted(sweep.path.rglob("*"))
    with pytest.raises(InputError, match=message):
        run_import(tmp_path / "theirs.parquet")
    assert [path for path in sorted(sweep.path.rglob("*")) if path.name != "lock"] == before


def test_used_and_invalid_names_are_refused(sweep, tmp_path):
    write_npz(tmp_path / "theirs.npz", columns_of())
    run_import(tmp_path / "theirs.npz")
    info = sweep.info()
    own_work = {**info.space.get("work", {}), "baselines": ["mine"]}  # of a plugin
    sweep.write_info(replace(info, space={**info.space, "work": own_work}))
    for name, message in (
        ("theirs", "the sweep has a record of that name"),
        (TPT, "tpt: is the name of a baseline; take another name, such as tpt_theirs"),
        ("fpp_paper", "fpp_paper: is the name of a baseline"),
        ("mine", "mine: is the name of a baseline"),
        ("x" * 101, "must be at most 100 letters"),
        ("../theirs", "must be at most 100 letters"),
        (".theirs", "first a letter or digit"),
    ):
        with pytest.raises(InputError, match=message):
            run_import(tmp_path / "theirs.npz", name)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", r"must be one of .npz, .parquet by its name \(.txt\)"),
        ("a.npz", b"PK\x03\x04", "not readable as npz"),
        ("a.parquet", b"PAR1", "not readable as parquet"),
    ],
)
def test_files_that_cannot_be_read_are_refused(sweep, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        run_import(tmp_path / name)


class RunsCode:
    """An object that touches a file when a pickle of it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_file_cannot_run_code(tmp_path):
    np.savez(tmp_path / "theirs.npz", id=np.array([RunsCode(tmp_path / "ran")], dtype=object))
    with pytest.raises(InputError, match="not readable as npz"):
        read_rows(tmp_path / "theirs.npz")
    assert not (tmp_path / "ran").exists()


def test_an_import_into_a_running_sweep_is_refused(sweep, tmp_path):
    write_npz(tmp_path / "theirs.npz", columns_of())
    with sweep.locked(), pytest.raises(InputError, match="sweep ev is being run by"):
        run_import(tmp_path / "theirs.npz")
