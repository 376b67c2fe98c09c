"""Plugins that misbehave in one way each: every one is noticed, and none changes the numbers of another trial.

`python -m tests.test_misbehaving_plugins` prints the table, in one process and on Ray.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
import textwrap
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from fpp_sweep.core.metric_contract import check_metric, made_up_predictions
from fpp_sweep.core.metrics import score
from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.global_state import process_settings, restored
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.plugin_guard import call_in_time
from fpp_sweep.spec.specs import PluginFile, WorkerSpec
from fpp_sweep.spec.tasks import EvalTask
from fpp_sweep.trial.results import TaskFailed
from fpp_sweep.trial.worker import Worker
from fpp_sweep.workers.actors import start_pool
from fpp_sweep.workers.needs import WorkerNeeds
from fpp_sweep.workers.session import session
from tests.kit.tasks import predictions
from tests.kit.waiting import LONG

pytestmark = pytest.mark.usefixtures("no_plugins_left")

CHECK_SECONDS = 60.0  # time limit for the check of a plugin that ends; such checks take much less
ENDLESS_SECONDS = 1.0  # time limit for the check of a plugin that never ends
HEAD = """\
import numpy, os, random, select, sys, time, torch, warnings
import PIL.Image, PIL.ImageFile
import fpp_sweep.core.metrics
from fpp_sweep import method, metric, penalty
"""
METHOD = """
calls = []


@method(name="NAME")
class Method:
    def __init__(self, adapt, penalty, weight):
        self.calls = 0

    def start(self, model, context, samples):
        with torch.no_grad():
            return model.texts.features(context)

    def predict(self, model, text, views):
        with torch.no_grad():
            logits = model.logits(views, text)[:, 0]
        CODE
        return logits.float(), text
"""
PENALTY = """
@penalty(weight=2.0, name="NAME")
def penalty_of_mine(text):
    CODE
    return text.mean((-1, -2))
"""
METRIC = """
@metric(goal="min", name="NAME")
def metric_of_mine(predictions):
    CODE
    return float(predictions.confidence.mean())
"""
ON_LOAD = f"CODE\n{METHOD.replace('CODE', 'pass')}"
TEMPLATES = {"method": METHOD, "penalty": PENALTY, "metric": METRIC, "on load": ON_LOAD}
RESTORED, REFUSED, NOTED, FAILS = "restored", "refused", "noted", "fails its trial"


@dataclass(frozen=True)
class Case:
    kind: str
    code: str
    outcome: str
    message: str  # the changed setting that the note names, or a part of the error

    @property
    def title(self):
        return f"{self.kind}: {'; '.join(self.code.split(chr(10)))}"

    def plugin(self, name):
        """Return the plugin as a file; its row has the name of the file."""
        depth = "    " if self.kind in ("penalty", "metric") else "        "
        code = self.code if self.kind == "on load" else textwrap.indent(self.code, depth).strip()
        text = HEAD + TEMPLATES[self.kind].replace("CODE", code).replace("NAME", name)
        return plugin_file(name, text)


def plugin_file(name, text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.py"
        path.write_text(text)
        (file,) = plugins.read([path])
    return file


CHANGES = {  # code that changes a setting of the process, and the name of the setting
    "torch.set_default_dtype(torch.float64)": "torch's default type",
    "torch.set_default_device('meta')": "torch's default device",
    "torch.set_num_threads(torch.get_num_threads() + 1)": "torch's number of threads",
    "torch.set_grad_enabled(False)": "torch's gradients (set_grad_enabled)",
    "torch.use_deterministic_algorithms(True, warn_only=True)": "torch's deterministic algorithms",
    "torch.backends.cudnn.benchmark = True": "cuDNN's settings",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": "torch's precision of float32 products",
    "torch.backends.cudnn.benchmark_limit = 3": "cuDNN's settings",
    "torch.backends.mkldnn.deterministic = True": "oneDNN's settings",
    "torch.backends.cuda.enable_math_sdp(False)": "torch's attention kernels (enable_*_sdp)",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False": "torch's sums in half precision",
    "torch.autograd.set_detect_anomaly(True)": "torch's search for anomalies (set_detect_anomaly)",
    "torch.set_autocast_enabled('cuda', True)": "torch's autocast",
    "calls.append(torch.inference_mode())\ncalls[-1].__enter__()": "torch's inference mode",
    "torch.autograd.graph.save_on_cpu().__enter__()": "torch's hooks on saved tensors",
    "torch.Tensor.det = None": "torch.Tensor.det",
    "torch.nn.functional.hardtanh = None": "torch.nn.functional.hardtanh",
    "fpp_sweep.core.metrics.BLOCK = 10": "fpp_sweep.core.metrics.BLOCK",
    "fpp_sweep.core.metrics.ClassBins.__add__ = None": "fpp_sweep.core.metrics.ClassBins.__add__",
    "PIL.ImageFile.LOAD_TRUNCATED_IMAGES = True": "Pillow's limits (LOAD_TRUNCATED_IMAGES, MAX_IMAGE_PIXELS)",
    "PIL.Image.MAX_IMAGE_PIXELS = None": "Pillow's limits (LOAD_TRUNCATED_IMAGES, MAX_IMAGE_PIXELS)",
    "numpy.random.set_bit_generator(numpy.random.PCG64(1))": "NumPy's random state",
    "torch.set_flush_denormal(True)": "torch's tiny numbers (set_flush_denormal)",
    "torch.manual_seed(5)": "torch's random state",
    "numpy.random.seed(5)": "NumPy's random state",
    "numpy.seterr(all='ignore')": "NumPy's handling of errors (seterr)",
    "random.seed(5)": "Python's random state",
    "os.chdir('/')": "the working folder",
    "os.environ['LEFT_BY_PLUGIN'] = '1'": "the environment",
    "warnings.simplefilter('error')": "the filters of warnings",
}
RANDOM = "the same call gives other bits"
WRITES_TO_SAMPLES = "changes the features or the context that it is given; it must work on copies"
WRITES_TO_MODEL = "changes the model or the class texts that it is given; it must work on copies"
NEVER_ENDS = "has not ended after 1 s; make it faster, or set work.task_timeout"
CHANGES_ITS_OWN_BITS = """\
logits = logits.double() + 1000 * torch.tensor(1 / 3).double()
torch.set_default_dtype(torch.float64)"""
ON_REAL_DATA = "if logits.shape[1] != 3:\n    "  # the check uses made-up samples of three classes
CASES = [
    *[Case("method", code, RESTORED, setting) for code, setting in CHANGES.items()],
    Case("on load", "torch.set_default_dtype(torch.float64)", RESTORED, "torch's default type"),
    Case("on load", "torch.set_grad_enabled(False)", RESTORED, "torch's gradients (set_grad_enabled)"),
    Case("on load", "numpy.random.seed(1)", RESTORED, "NumPy's random state"),
    Case("on load", "os.chdir('/')", RESTORED, "the working folder"),
    Case("on load", "os.environ['ONEDNN_MAX_CPU_ISA'] = 'SSE41'", RESTORED, "the environment"),
    Case("on load", "fpp_sweep.core.metrics.score = print", RESTORED, "fpp_sweep.core.metrics.score"),
    Case("method", "logits = logits + torch.randn(1)", REFUSED, RANDOM),
    Case("method", "logits = logits + numpy.random.rand()", REFUSED, RANDOM),
    Case("method", "logits = logits + random.random()", REFUSED, RANDOM),
    Case("method", "self.calls += 1\nlogits = logits * self.calls", REFUSED, RANDOM),
    Case("method", "calls.append(1)\nlogits = logits * len(calls)", REFUSED, RANDOM),
    Case("method", "logits = logits * (time.perf_counter() % 1)", REFUSED, RANDOM),
    Case("method", "views.mul_(2)", REFUSED, WRITES_TO_SAMPLES),
    Case("method", "views[:1].zero_()", REFUSED, WRITES_TO_SAMPLES),
    Case("method", "model.texts.tower.projection[0].mul_(1.01)", REFUSED, WRITES_TO_MODEL),
    Case("method", "model.texts.tower.token_embedding.data[3:5] += 1", REFUSED, WRITES_TO_MODEL),
    Case("method", "model.texts.nodes.numpy()[0] = 0", REFUSED, WRITES_TO_MODEL),
    Case("method", CHANGES_ITS_OWN_BITS, REFUSED, "keeps nothing in itself; it changes torch's default type"),
    Case("method", "views[0, [0, 1]] = views[0, [1, 0]]", REFUSED, WRITES_TO_SAMPLES),
    Case("method", "torch.backends.mkldnn.enabled = False", REFUSED, "keeps nothing in itself; it changes oneDNN's"),
    Case("method", "text.add_(1)", REFUSED, "changes the state that it is given; it must return a new one"),
    Case("method", "logits = logits - logits.mean(0)", REFUSED, "results change with the composition of batches"),
    Case("method", "logits = logits[:1]", REFUSED, "logits have shape (1, 3), must be (4, 3)"),
    Case("method", "logits = logits / 0", REFUSED, "logits are not finite"),
    Case("method", "undefined", REFUSED, "fails on made-up samples: NameError: name 'undefined' is not defined"),
    Case("method", "sys.exit(0)", REFUSED, "fails on made-up samples: SystemExit: 0"),
    # not time.sleep(), which other tests replace: the thread goes on until the process ends
    Case("method", "while True:\n    select.select([], [], [], 0.01)", REFUSED, NEVER_ENDS),
    Case("method", "time.sleep(10**6)", REFUSED, NEVER_ENDS),
    Case("penalty", "text = text + torch.randn(1)", REFUSED, RANDOM),
    Case("penalty", "text.data.mul_(2)", REFUSED, "changes the text features that it is given"),
    Case("penalty", "text = text[0]", REFUSED, "values for two prompts have shape (), must be (2,)"),
    Case("metric", "return random.random()", REFUSED, "for the same predictions; it must not draw random numbers"),
    Case("metric", "predictions.confidence.sort()", REFUSED, "changes the predictions that it is given"),
    Case("metric", "predictions.columns['mine'] = 1", NOTED, "'mappingproxy' object does not support item assignment"),
    Case("metric", "time.sleep(10**6)", REFUSED, NEVER_ENDS),
    Case("metric", "1 / 0", NOTED, "division by zero, on made-up predictions; a trial fails if the same happens"),
    Case("metric", "sys.exit(0)", NOTED, "SystemExit: 0, on made-up predictions"),
    Case("metric", "return float('inf')", NOTED, "must return a finite number (inf), on made-up predictions"),
    Case("metric", "numpy.random.seed(5)", RESTORED, "NumPy's random state"),
    Case("metric", "torch.set_default_dtype(torch.float64)", RESTORED, "torch's default type"),
    Case("metric", "os.chdir('/')", RESTORED, "the working folder"),
    Case("method", f"{ON_REAL_DATA}model.texts.tower.projection[0].mul_(1.01)", FAILS, "writes to the model"),
    Case("method", f"{ON_REAL_DATA}text.mul_(2)", FAILS, "writes to the model, the class texts or the state"),
    Case("method", f"{ON_REAL_DATA}sys.exit(0)", FAILS, "SystemExit: 0"),
]


def test_the_older_copy_of_the_precision_of_products_is_restored():
    """torch raises an error where it reads the older copy and finds the two different."""
    before = torch.get_float32_matmul_precision()
    with restored(lambda setting: None):
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert torch.get_float32_matmul_precision() == before


def task_of(method, number=0):
    """Return a task on four images; tasks with different numbers differ, so that no result is cached."""
    settings = {"views.count": 4, "adapt.view_fraction": 0.5, "adapt.lr": 0.005 * (1 + number)}
    config = TrialConfig(method=method, prompt="a photo of a").replace(settings)
    return EvalTask(config=config, dataset="digits", split="val", seed=0, start=0, stop=4)


def probe(number=0):
    """Return a task of another trial, whose result a misbehaving plugin must not change."""
    return task_of("tpt", number)


class InProcess:
    """A worker in this process."""

    def __init__(self, spec):
        self.worker = Worker(spec)

    def check(self, name, seconds):
        return self.worker.check([name], [], [], seconds).notes

    def run(self, task):
        return self.worker.run(task, [])


class OnRay:
    """A worker in a process of Ray, reached through the scheduler as a trial's process reaches it."""

    def __init__(self, spec, folder):
        needs = WorkerNeeds(workers=1, cpus=1.0, gpus=0.0, env={})
        self.pool = start_pool(spec, needs, folder / "tasks", attempts=1, timeout=LONG)
        info = self.pool.open()
        (digits,) = self.pool.describe(["digits"], "val")
        self.pool.begin(TaskKeys(info, {("digits", "val"): digits}))

    def check(self, name, seconds):
        return self.pool.check([name], [], [], seconds).notes

    def run(self, task):
        ((_, result),) = self.pool.results([task])
        return result


def outcome_of(case, name, runner, number=0):
    """Return the outcome of a plugin's method or penalty and the text of the note or error."""
    seconds = ENDLESS_SECONDS if case.message == NEVER_ENDS else CHECK_SECONDS
    try:
        notes = runner.check(name, seconds)
    except (InputError, TaskFailed) as error:
        return REFUSED, str(error)
    try:
        notes += runner.run(task_of(name, number)).notes
    except TaskFailed as error:
        return FAILS, str(error)
    return RESTORED, "\n".join(notes)


def outcome_of_metric(case, name):
    """Return the outcome of a plugin's metric in this process and the text of the note or error."""
    err = io.StringIO()
    row = catalogue.METRICS[name]
    with contextlib.redirect_stderr(err):
        try:
            check_metric(row, ENDLESS_SECONDS if case.message == NEVER_ENDS else CHECK_SECONDS)
        except InputError as error:
            return REFUSED, str(error)
        with contextlib.suppress(InputError):
            score(predictions(8))
    text = err.getvalue()
    if "restored" in text:
        return RESTORED, text
    return (NOTED if text else "not noticed"), text


def is_right(case, name, outcome):
    """Return True if the outcome is the expected one and its text names the plugin, its file and its line."""
    kind, text = outcome
    if kind != case.outcome or case.message not in text:
        return False
    if kind == RESTORED:
        return f"plugin {name}.py: " in text and text.count(case.message) <= 2  # once in the check and once in a task
    if case.message == NEVER_ENDS:  # on a slow machine, the check may end before the plugin's code runs
        return re.search(rf"(method|metric) {name}\b", text) is not None
    return re.search(rf"(method|metric) {name} \({name}\.py:\d+\)", text) is not None


def fresh_spec(folder, *files: PluginFile):
    return WorkerSpec(model="tiny", cache=str(folder / "cache"), plugins=files, threads=1)


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    return InProcess(fresh_spec(tmp_path_factory.mktemp("worker")))


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The probe's predictions before any plugin is loaded; computing a score loads the metrics' libraries."""
    score(predictions(8))
    return InProcess(fresh_spec(tmp_path_factory.mktemp("before"))).run(probe()).predictions


def state_of_process():
    return {name: read() for name, (read, _) in process_settings().items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_a_misbehaving_plugin_is_noticed_and_changes_no_other_trial(case, runner, expected, capsys):
    before = state_of_process()
    plugins.load([case.plugin("mine")])
    on_load = capsys.readouterr().err
    if case.kind == "metric":
        outcome = outcome_of_metric(case, "mine")
    else:
        outcome = outcome_of(case, "mine", runner)
    if case.kind == "on load":
        outcome = RESTORED, on_load
    assert is_right(case, "mine", outcome), outcome
    assert state_of_process() == before
    assert runner.run(probe()).predictions == expected


def test_a_setting_that_two_tasks_change_is_noted_once(runner, capsys):
    case = Case("method", "torch.set_default_dtype(torch.float64)", RESTORED, "torch's default type")
    plugins.load([case.plugin("once")])
    results = [runner.run(task_of("once", number)) for number in range(2)]
    note = "plugin once.py: method once changes torch's default type, which is restored"
    assert [result.notes for result in results] == [(note,), ()]
    assert capsys.readouterr().err.splitlines() == [f"note: {note}"]


def test_a_call_that_never_ends_is_named_with_its_line():
    case = Case("metric", "time.sleep(10**6)", REFUSED, NEVER_ENDS)
    plugins.load([case.plugin("mine")])
    line = next(number for number, text in enumerate(case.plugin("mine").text.splitlines(), 1) if "sleep" in text)
    with pytest.raises(plugins.ContractError, match=rf"^metric mine \(mine\.py:{line}\): has not ended after 1 s"):
        call_in_time(lambda: catalogue.METRICS["mine"].compute(None), ENDLESS_SECONDS, "metric mine")


def test_a_call_that_ends_too_late_restores_no_settings(tmp_path, monkeypatch):
    """Other code has gone on in the meantime."""
    code = "while not numpy.is_released:\n        select.select([], [], [], 0.01)"
    plugins.load([Case("metric", code, REFUSED, NEVER_ENDS).plugin("late")])
    monkeypatch.setattr(np, "is_released", False, raising=False)
    row, threads = catalogue.METRICS["late"], set(threading.enumerate())
    with pytest.raises(plugins.ContractError, match="has not ended after 1 s"):
        check_metric(row, ENDLESS_SECONDS)
    (thread,) = set(threading.enumerate()) - threads
    monkeypatch.chdir(tmp_path)
    np.is_released = True
    thread.join(LONG)
    assert not thread.is_alive()
    assert Path.cwd() == tmp_path


def test_a_metric_that_keeps_the_contract_gives_no_note(capsys):
    plugins.load([Case("metric", "pass", NOTED, "").plugin("sound")])
    check_metric(catalogue.METRICS["sound"], CHECK_SECONDS)
    assert np.isfinite(score(made_up_predictions(()))["sound"])
    assert capsys.readouterr().err == ""


ON_RAY = [
    case for case in CASES if case.kind != "metric"
]  # metrics are computed in the trial's process, not by workers


def outcomes_on_ray(folder):
    """Yield each case, its name, its outcome, and True if a task of another trial keeps its bits afterwards."""
    # plugins that never end come last, because they keep slowing down their process
    cases = sorted(ON_RAY, key=lambda case: case.message == NEVER_ENDS)
    files = {f"mine{number:02}": case.plugin(f"mine{number:02}") for number, case in enumerate(cases)}
    alone = InProcess(fresh_spec(folder))
    plugins.load(tuple(files.values()))
    with session(None, cpus=2, verbose=False):
        on_ray = OnRay(fresh_spec(folder, *files.values()), folder)
        for number, (name, case) in enumerate(zip(files, cases, strict=True)):
            outcome = outcome_of(case, name, on_ray, number)
            result = on_ray.run(probe(number)).predictions
            yield case, name, outcome, result == alone.run(probe(number)).predictions


@pytest.mark.nightly  # the fast tests do the same in one process
@pytest.mark.slow  # starts Ray
def test_misbehaving_plugins_on_ray_are_noticed_and_change_no_other_trial(tmp_path):
    problems = []
    for case, name, outcome, is_same in outcomes_on_ray(tmp_path):
        right = is_right(case, name, outcome) or (case.kind == "on load" and outcome[0] == RESTORED)
        if not (right and is_same):
            problems.append((case.title, outcome, is_same))
    assert not problems


@cache
def _worker_of_table(folder):
    return InProcess(fresh_spec(folder))


def print_table(folder):
    """Print the outcomes of each misbehaving plugin in one process and on Ray."""
    on_ray = {case: (outcome, is_same) for case, _, outcome, is_same in outcomes_on_ray(folder)}
    for file in plugins.loaded():
        plugins.unload(file)
    before = _worker_of_table(folder).run(probe()).predictions
    for case in CASES:
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            plugins.load([case.plugin("mine")])
            if case.kind == "metric":
                outcome = outcome_of_metric(case, "mine")
            else:
                outcome = outcome_of(case, "mine", _worker_of_table(folder))
        if case.kind == "on load":
            outcome = RESTORED, err.getvalue()
        is_same = _worker_of_table(folder).run(probe()).predictions == before
        here = f"{outcome[0]}, others {'same' if is_same else 'CHANGED'}"
        there = "-"
        if case in on_ray:
            (kind, _), is_same = on_ray[case]
            there = f"{kind}, others {'same' if is_same else 'CHANGED'}"
        print(f"{case.title[:75]:75} | {here} | {there} | {' '.join(outcome[1].split())[:160]}")
        plugins.unload(case.plugin("mine"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print_table(Path(scratch))
