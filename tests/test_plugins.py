"""Plugins: the recipes of docs/plugins.md as printed, and files that are no plugins."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fpp_sweep import Options, evaluate, load_plugins, run_locally
from fpp_sweep.core.metrics import Predictions, score
from fpp_sweep.search.trial_runner import TrialRunner
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import DatasetInfo, ModelInfo, WorkerSpec
from fpp_sweep.spec.tasks import EvalTask
from fpp_sweep.trial.results import TaskFailed
from fpp_sweep.trial.worker import Worker

pytestmark = pytest.mark.usefixtures("no_plugins_left")

PAGE = Path(__file__).parent.parent / "docs" / "plugins.md"
RECIPES = {name: text for name, text in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)}
TEST = RECIPES.pop("test_plugins")
HEAD = "import torch\nfrom fpp_sweep import method, metric, penalty, sampler\n"


def write_plugins(folder, **texts):
    paths = []
    for name, text in texts.items():
        paths.append(folder / f"{name}.py")
        paths[-1].write_text(text)
    return paths


def load(folder, **texts):
    files = plugins.read(write_plugins(folder, **texts))
    plugins.load(files)
    return files


def test_the_recipes_run_as_printed_and_appear_in_the_tables(tmp_path, monkeypatch, capsys):
    assert list(RECIPES) == ["overconfidence", "angular", "vote", "crossing"]
    assert len(RECIPES["crossing"].splitlines()) <= 20
    assert all(len(text.splitlines()) <= 30 for text in RECIPES.values())
    monkeypatch.setenv("FPP_SWEEP_CACHE", str(tmp_path / "cache"))
    files = [str(path) for path in write_plugins(tmp_path, **RECIPES)]
    words = [
        "--datasets",
        "scenes",
        "--limit",
        "8",
        "--prompt",
        "a photo of a",
        "--out",
        str(tmp_path),
        "--name",
        "out",
    ]
    methods = [catalogue.ZERO_SHOT, "angular", "vote"]
    evaluate.main(
        ["--plugin", *files, "--method", *methods, "--set", "views.count=4", "adapt.view_fraction=0.5", *words]
    )
    printed = capsys.readouterr().out
    assert re.search(r"^test .* over\b", printed, flags=re.M)
    trials = json.loads((tmp_path / "out" / "results.json").read_text())["trials"]
    numbers = {trial["config"]["method"]: trial["datasets"]["scenes"] for trial in trials}
    assert list(numbers) == methods
    assert all(0 <= row["overconfidence"] <= 100 for row in numbers.values())
    assert numbers["vote"]["nll"] != numbers[catalogue.ZERO_SHOT]["nll"] != numbers["angular"]["nll"]


def test_the_recipes_pass_the_checks_of_the_page(tmp_path, monkeypatch):
    write_plugins(tmp_path, **RECIPES)
    monkeypatch.chdir(tmp_path)
    test: dict[str, Any] = {}
    exec(TEST, test)
    test["test_my_plugins"]()
    assert [row.name for row in catalogue.rows_of_plugins()] == ["angular", "vote", "overconfidence", "crossing"]


def test_the_process_of_trials_loads_the_plugins_of_the_sweep(tmp_path):
    files = plugins.read(write_plugins(tmp_path, angular=RECIPES["angular"]))
    runner = TrialRunner.__new__(TrialRunner)  # without Ray Tune's own start
    runner.setup({}, SimpleNamespace(plugins=files))
    assert catalogue.method("angular").name == "angular"
    job = {"name": "trial-0007", "split": "val", "order": 7}
    assert runner.reset_config(job) is True  # otherwise Ray Tune would start a new process
    assert runner._job == job


def test_an_edited_plugin_replaces_the_old_one_and_has_other_keys(tmp_path):
    here = {"device": "cpu", "arithmetic": "", "node": "here", "pid": 1}
    model = ModelInfo(name="none", digest="weights", embedding_scale=1.0, **here)
    data = DatasetInfo(name="dtd", split="val", group="custom", classes=("a", "b"), size=64, digest="", images="")

    def key():
        task = EvalTask(config=TrialConfig(method="angular"), dataset="dtd", split="val", seed=0, start=0, stop=64)
        return TaskKeys(model, {("dtd", "val"): data}).of(task)

    load(tmp_path, angular=RECIPES["angular"])
    before = key()
    load(tmp_path, angular=RECIPES["angular"])
    assert key() == before
    load(tmp_path, angular=RECIPES["angular"].replace("mean(-1)", "sum(-1)"))
    assert key() != before


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("import torch", "plugin mine.py: registers nothing"),
        ("1 / 0", "plugin mine.py:1: ZeroDivisionError: division by zero"),
        ("import torch\nimport nowhere_to_be_found", "plugin mine.py:2: ModuleNotFoundError: No module named"),
        ("def f(:", "plugin mine.py:1: SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", "plugin mine.py:1: SystemExit: 3"),
        (f"{HEAD}@metric(goal='min', columns=['logit'])\ndef f(p): ...", "unknown column 'logit', did you mean"),
        (f"{HEAD}@metric(goal='min')\ndef ece(predictions): ...", "registers metric 'ece', which exists already"),
        (
            f"{HEAD}@sampler()\ndef tpe(seed): ...",
            "registers sampler 'tpe', which exists already; give it another name",
        ),
        (
            f"{HEAD}@penalty(weight=1)\ndef {catalogue.ZERO_SHOT}(text): ...",
            "which exists already; give it another name",
        ),
        (f"{HEAD}@penalty(weight=1)\ndef fpp_code(text): ...", "registers method 'fpp_code', which exists already"),
        (f"{HEAD}@penalty(weight='2')\ndef f(text): ...", "mine.py:3: weights must be finite numbers ('2')"),
        (f"{HEAD}@penalty(weight=1, weight_on_shifts=float('nan'))\ndef f(t): ...", "weights must be finite numbers"),
        (f"{HEAD}@method(name='../../x')\ndef f(**x): ...", "name must begin with a letter or _, and have"),
        (f"{HEAD}@method(reads=['adapt.view_fracton'])\ndef f(**x): ...", "did you mean 'adapt.view_fraction'?"),
        (f"{HEAD}@method(reads='adapt.lr')\ndef f(**x): ...", "unknown setting 'd'"),
        (f"{HEAD}@metric(goal='min', name='state')\ndef f(p): ...", "name 'state' is that of a column of each sweep's"),
        (f"{HEAD}@metric(goal='min')\ndef precision(p): ...", "name 'precision' is that of a column of each sweep's"),
        (f"{HEAD}@metric(goal='maximize')\ndef f(p): ...", "mine.py:3: goal must be one of max, min ('maximize')"),
        (f"{HEAD}@metric(goal='min', columns='logits')\ndef f(p): ...", "unknown column 'l'"),
        (f"{HEAD}@metric(goal='min', name='a/b')\ndef f(p): ...", "name must begin with a letter or _, and have"),
    ],
)
def test_a_file_that_is_no_plugin_is_reported_in_one_line_and_leaves_no_rows(tmp_path, text, complaint):
    methods, metrics = list(catalogue.METHODS), list(catalogue.METRICS)
    with pytest.raises(InputError) as error:
        load(tmp_path, mine=text)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)
    assert (list(catalogue.METHODS), list(catalogue.METRICS)) == (methods, metrics)


def test_a_missing_file_and_two_plugins_of_one_name_are_refused(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        plugins.read([tmp_path / "gone.py"])
    (path,) = write_plugins(tmp_path, mine="x = 1")
    (tmp_path / "other").mkdir()
    (other,) = write_plugins(tmp_path / "other", mine="x = 1")
    with pytest.raises(InputError, match="another plugin is named mine"):
        plugins.read([path, other])
    (plugin,) = plugins.read([path, path])  # the same file twice is one plugin
    assert plugin.name == "mine"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        plugins.read([path])


@pytest.mark.parametrize("statement", ["import helper", "from helper.parts import x", "def f():\n    import helper"])
def test_a_plugin_that_imports_a_file_beside_it_is_refused(tmp_path, statement):
    """Keys of results would not contain that file, so that a resumed sweep would mix results of two versions of it."""
    (path,) = write_plugins(tmp_path, mine=f"import torch, fpp_sweep\n{statement}\n")
    assert plugins.read([path])
    (tmp_path / "helper.py").write_text("x = 1")
    with pytest.raises(InputError, match=re.escape(f"--plugin {path}: imports helper, which workers elsewhere")):
        plugins.read([path])


def test_a_file_with_a_byte_order_mark_is_a_plugin(tmp_path):
    (path,) = write_plugins(tmp_path, angular=RECIPES["angular"])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    plugins.load(plugins.read([path]))
    assert "angular" in catalogue.METHODS


def test_a_plugin_of_a_python_program_is_that_of_its_sweeps(tmp_path, monkeypatch):
    """Without a way to load it, a notebook could neither run nor read a sweep with an objective of a plugin."""
    monkeypatch.setenv("FPP_SWEEP_CACHE", str(tmp_path / "cache"))
    (path,) = write_plugins(tmp_path, overconfidence=RECIPES["overconfidence"])
    text = """
        base: {prompt: a photo of a, method: tpt, adapt.view_fraction: 0.5}
        params: {views.count: [4]}
        objectives: [accuracy, overconfidence]
        search: {sampler: grid}
        work: {datasets: [scenes], limit: 8, baselines: []}
    """
    with pytest.raises(InputError, match=r"needs --plugin FILE, in Python load_plugins\(FILE\)"):
        parse_space(text, "mine.yaml")
    load_plugins(path)
    sweep = run_locally(parse_space(text, "mine.yaml"), Options(root=tmp_path, name="mine"))
    assert list(sweep.info.plugins) == ["overconfidence"]
    assert sweep.table()[0]["overconfidence"] >= 0
    assert Options().plugins == plugins.read([path])


def test_a_method_that_sees_views_depends_on_their_settings(tmp_path):
    text = f"{HEAD}@method(reads=['adapt.lr'])\ndef f(**x): ...\n@method(reads=[], views=1)\ndef g(**x): ..."
    load(tmp_path, mine=text)
    assert catalogue.method("f").reads == ("adapt.lr", "views.")
    assert catalogue.method("g").reads == ()


def test_rows_are_registered_by_plugins_only():
    with pytest.raises(InputError, match="--plugin"):
        catalogue.register_metric(goal="min")(len)


METRIC = "@metric(goal='min')\ndef mine(predictions):\n    values = {}\n    return BROKEN\n"


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("1 / len(values)", "metric mine (bad.py:6): ZeroDivisionError: division by zero"),
        ("values['x']", "metric mine (bad.py:6): KeyError: 'x'"),
        ("[][0]", "metric mine (bad.py:6): IndexError: list index out of range"),
        ("'much'", "metric mine (bad.py): ValueError: could not convert string to float: 'much'"),
        ("float('nan')", "metric mine (bad.py): must return a finite number (nan)"),
    ],
)
def test_an_error_in_a_metric_names_the_metric_file_and_line(tmp_path, broken, message):
    load(tmp_path, bad=HEAD + METRIC.replace("BROKEN", broken))
    probabilities = np.array([[0.75, 0.25]], np.float32)
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        score(Predictions.of(["a"], np.array([0]), probabilities))


METHOD = (
    HEAD
    + """
@method(name="mine")
class Mine:
    def __init__(self, adapt, penalty, weight):
        self.seen = 0

    @torch.no_grad()
    def start(self, model, context, samples):
        return model.texts.features(context)

    @torch.no_grad()
    def predict(self, model, text, views):
        logits = model.logits(views, text)[:, 0]
        return LOGITS, text
"""
)


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    return Worker(WorkerSpec(model="tiny", cache=str(tmp_path_factory.mktemp("cache"))))


def test_an_error_in_a_method_names_the_samples_the_worker_the_method_and_the_line(tmp_path, worker):
    text = METHOD.replace("LOGITS", "[][0]")
    line = next(number for number, code in enumerate(text.splitlines(), start=1) if "[][0]" in code)
    load(tmp_path, mine=text)
    config = TrialConfig(method="mine", prompt="a photo of a").replace({"views.count": 2})
    task = EvalTask(config=config, dataset="digits", split="val", seed=0, start=0, stop=5)
    with pytest.raises(TaskFailed) as failure:
        worker.run(task, [])
    where = f"{task.title}, {worker.model_info().where}, method mine (mine.py:{line})"
    assert failure.value.reason == f"{where}: IndexError: list index out of range"


@pytest.mark.parametrize(("logits", "columns"), [("torch.nn.functional.pad(logits, (0, 2))", 12), ("logits[:, :9]", 9)])
def test_logits_of_more_or_fewer_classes_fail_the_trial(tmp_path, worker, logits, columns):
    """More classes than the dataset has would count in every metric."""
    load(tmp_path, mine=METHOD.replace("LOGITS", logits))
    config = TrialConfig(method="mine", prompt="a photo of a").replace({"views.count": 2, "adapt.lr": columns})
    task = EvalTask(config=config, dataset="digits", split="val", seed=0, start=0, stop=5)
    with pytest.raises(TaskFailed, match=rf"mine: logits of shape \(5, {columns}\), must be \(5, 10\): a row for"):
        worker.run(task, [])


def test_the_sampler_of_a_plugin_needs_the_plugin():
    with pytest.raises(InputError, match=r"unknown sampler 'mine'; .* the sampler of a plugin needs --plugin FILE"):
        parse_space("params: {fpp.gamma1: {low: 0.1, high: 10}}\nsearch: {sampler: mine}\n", "space.yaml")
