"""Plugins whose results depend on the process or on earlier calls, or that end or hold their process."""

import pytest

from fpp_sweep.space.reading import load_space
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.plugins import ContractError
from fpp_sweep.sweep.plugin_check import check_in_new_processes
from tests.test_misbehaving_plugins import plugin_file

pytestmark = pytest.mark.usefixtures("no_plugins_left")

METRIC = """
import os, random, time
from fpp_sweep import metric

kept = {}


@metric(goal="min")
def mine(predictions):
    mean = float(predictions.confidence.mean())
    CODE
"""
PENALTY = """
from fpp_sweep import penalty


@penalty(weight=2.0)
def sound(text):
    return text.mean((-1, -2))
"""
METHOD = """
import torch
from fpp_sweep import method


@method()
class mine:
    kept = {}

    def __init__(self, adapt, penalty, weight):
        pass

    def start(self, model, context, samples):
        with torch.no_grad():
            features = model.texts.features(context)
        return self.kept.setdefault(features.shape, features)

    @torch.no_grad()
    def predict(self, model, text, views):
        return model.logits(views, text)[:, 0].float(), text
"""
SAMPLER = """
import random
from optuna.samplers import RandomSampler
from fpp_sweep import sampler


@sampler()
class mine(RandomSampler):
    def __init__(self, seed):
        super().__init__(seed)

    def sample_independent(self, study, trial, name, distribution):
        CODE
"""
OTHER_BITS = "other bits in another process; results must not depend on the time, the process or the order of a set"
EARLIER_CALLS = "results depend on earlier calls in the same process; keep nothing in a class or module"
ENDLESS = "has not ended after 2 s; make it faster, or set work.task_timeout"


def space_with(*settings):
    return load_space("smoke", settings)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("return kept.setdefault('first', mean)", EARLIER_CALLS),
        ("return kept.setdefault(len(predictions.labels), mean)", EARLIER_CALLS),
        ("return hash('a') % 1000", OTHER_BITS),
        ("return float(next(iter({str(i) for i in range(100)})))", OTHER_BITS),
        ("return int(time.time())", OTHER_BITS),
        ("return random.Random(os.getpid()).random()", OTHER_BITS),
        (
            "kept['calls'] = kept.get('calls', 0) + 1; assert kept['calls'] < 3, 'called too often'; return mean",
            f"{EARLIER_CALLS}; fails: metric mine (mine.py:11): called too often",
        ),
        ("return sum(range(10**12))", ENDLESS),  # it holds Python's lock
        ("os._exit(3)", "ends the process that runs it (status 3)"),
        ("os.kill(os.getpid(), 11)", "ends the process that runs it (status -11)"),
    ],
)
def test_a_metric_that_depends_on_its_process_or_ends_it_is_refused(code, problem):
    plugins.load([plugin_file("mine", METRIC.replace("CODE", code))])
    with pytest.raises(ContractError) as refused:
        check_in_new_processes(space_with("work.task_timeout=2"), [])
    message = str(refused.value)
    assert message.startswith("metric mine (mine.py:")
    assert message.endswith(problem)


def test_a_thread_that_a_plugin_leaves_does_not_hold_its_process(capsys):
    code = "import threading; threading.Thread(target=time.sleep, args=(10**6,)).start(); return mean"
    plugins.load([plugin_file("mine", METRIC.replace("CODE", code))])
    check_in_new_processes(space_with(), [])
    assert capsys.readouterr().err == "checking plugins ...\n"


def test_a_process_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    monkeypatch.chdir(tmp_path)
    plugins.load([plugin_file("mine", METRIC.replace("CODE", "return mean"))])
    check_in_new_processes(space_with(), [])
    assert not (tmp_path / "ran").exists()


def test_the_error_of_a_process_that_cannot_start_is_shown(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise ImportError('broken installation')")
    plugins.load([plugin_file("mine", METRIC.replace("CODE", "return mean"))])
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"ended too early \(status 1\): ImportError: broken installation$"):
        check_in_new_processes(space_with(), [])


def test_a_process_that_cannot_start_gives_one_line(monkeypatch):
    plugins.load([plugin_file("mine", METRIC.replace("CODE", "return mean"))])
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(InputError, match=r"^plugins: a process that checks them has ended too early \(status 1\)"):
        check_in_new_processes(space_with(), [])


@pytest.mark.slow  # starts two processes that load the model, twice
def test_a_method_that_keeps_a_value_for_each_shape_is_refused():
    plugins.load([plugin_file("mine", METHOD)])
    with pytest.raises(ContractError, match=rf"^method mine \(mine\.py:10\): {EARLIER_CALLS}$"):
        check_in_new_processes(space_with(), ["mine", "tpt"])


@pytest.mark.parametrize("number", ["hash(name) % 1000", "random.uniform(1, 1000)"])
def test_a_sampler_that_draws_by_chance_is_refused(number):
    code = f"""if name == "fpp.gamma2":
            return 1 + {number} / 1000
        return super().sample_independent(study, trial, name, distribution)"""
    plugins.load([plugin_file("mine", SAMPLER.replace("CODE", code))])
    with pytest.raises(ContractError, match=rf"^sampler mine \(mine\.py:9\): {OTHER_BITS}"):
        check_in_new_processes(space_with("search.sampler=mine"), [])


@pytest.mark.slow  # starts two processes that load the model
def test_sound_plugins_pass():
    sampler = SAMPLER.replace("CODE", "return super().sample_independent(study, trial, name, distribution)")
    texts = {
        "mine": METRIC.replace("CODE", "return mean"),
        "sound": PENALTY,
        "drawing": sampler.replace("mine", "drawing"),
    }
    plugins.load([plugin_file(name, text) for name, text in texts.items()])
    check_in_new_processes(space_with("search.sampler=drawing"), ["sound"])


def test_without_plugins_no_process_is_started(monkeypatch):
    monkeypatch.setattr("sys.executable", "/nonexistent")
    check_in_new_processes(space_with(), ["tpt"])
