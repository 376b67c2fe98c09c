"""The checks of `fpp_sweep.testing`, on rows of plugins that break one promise each, and on the built-in rows.

tests/contracts/test_methods.py has those of methods.
"""

import pytest

from fpp_sweep import load_plugins
from fpp_sweep.spec import catalogue
from fpp_sweep.testing import check_method, check_metric, check_penalty, check_sampler
from tests.kit.long_forms import short_and_long

pytestmark = pytest.mark.usefixtures("no_plugins_left")

METRIC = """
import random
from fpp_sweep import metric

kept = []


@metric(goal="min", columns=["logits"])
def mine(predictions):
    CODE
"""
PENALTY = """
import torch
from fpp_sweep import penalty


@penalty(weight=2.0)
def mine(text):
    CODE
"""
SAMPLER = """
import random
from optuna.samplers import RandomSampler
from fpp_sweep import sampler


@sampler()
class mine(RandomSampler):
    def sample_independent(self, study, trial, name, distribution):
        value = super().sample_independent(study, trial, name, distribution)
        CODE
"""


def load_mine(folder, template, code):
    path = folder / "mine.py"
    path.write_text(template.replace("CODE", code))
    load_plugins(path)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("return random.random()", "metric mine (mine.py): the same predictions give another number"),
        ("kept.append(1); return len(kept)", "metric mine (mine.py): the same predictions give another number"),
        ("return float('inf')", "metric mine (mine.py): must be finite (inf)"),
        ("return 1 / 0", "metric mine (mine.py:10): fails on made-up data: ZeroDivisionError: division by zero"),
        ("predictions.confidence.sort()", "metric mine (mine.py:10): fails on made-up data: ValueError: sort array is"),
        ("predictions.columns['logits'][0] = 1", "metric mine (mine.py:10): fails on made-up data: ValueError: "),
    ],
)
def test_a_metric_that_breaks_a_promise_is_reported_in_one_line(tmp_path, code, message):
    load_mine(tmp_path, METRIC, code)
    with pytest.raises(AssertionError) as broken:
        check_metric("mine")
    assert str(broken.value).startswith(message)
    assert "\n" not in str(broken.value)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("return text.mean()", "values for two prompts have shape (), must be (2,)"),
        ("return text.mean((-1, -2)) / 0", "values are not finite"),
        ("return text.detach().mean((-1, -2))", "has no gradient"),
    ],
)
def test_a_penalty_that_breaks_a_promise_is_reported(tmp_path, code, message):
    load_mine(tmp_path, PENALTY, code)
    with pytest.raises(AssertionError) as broken:
        check_penalty("mine")
    assert str(broken.value).startswith(f"penalty mine (mine.py): {message}")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("return 99.0 if name == 'fpp.gamma1' else value", "sampler mine: draws fpp.gamma1: 99 is outside 0.1..10"),
        ("return 1 / 0", "sampler mine (mine.py:11): fpp.gamma1: ZeroDivisionError: division by zero"),
        (
            "return random.uniform(1, 2) if name == 'fpp.gamma1' else value",
            "sampler mine (mine.py): draws another point",
        ),
        ("return study.best_trial.params[name]", "sampler mine (mine.py:11): fpp.gamma1: RuntimeError: "),
    ],
)
def test_a_sampler_that_breaks_a_promise_is_reported(tmp_path, code, message):
    load_mine(tmp_path, SAMPLER, code)
    with pytest.raises(AssertionError) as broken:
        check_sampler("mine")
    assert str(broken.value).startswith(message)


def test_a_penalty_is_checked_as_a_method_too(tmp_path):
    load_mine(tmp_path, PENALTY, "return text.mean((-1, -2)) * torch.rand(1)")
    with pytest.raises(AssertionError, match=r"^method mine \(mine\.py\): the same call gives other bits"):
        check_penalty("mine")


def test_a_function_that_builds_no_sampler_is_reported(tmp_path):
    load_mine(tmp_path, "from fpp_sweep import sampler\n\n\n@sampler()\ndef mine(seed):\n    CODE\n", "return 3")
    with pytest.raises(AssertionError, match=r"^sampler mine: must build an optuna.samplers.BaseSampler \(int\)$"):
        check_sampler("mine")


def test_sound_rows_of_a_plugin_pass(tmp_path):
    load_mine(tmp_path, METRIC, "return float(predictions.columns['logits'].mean())")
    check_metric("mine")
    load_mine(tmp_path, PENALTY, "return text.mean((-1, -2))")
    check_penalty("mine")
    check_method("mine")
    load_mine(tmp_path, SAMPLER, "return value")
    check_sampler("mine")


# the columns of conformal sets are made of the logits of other images
@pytest.mark.parametrize("name", [row.name for row in catalogue.dataset_metrics(catalogue.COLUMNS)])
def test_built_in_metrics_pass(name):
    check_metric(name)


@pytest.mark.parametrize("name", [row.name for row in catalogue.METHODS.values() if row.penalty and row.listed])
def test_built_in_penalties_pass(name):
    check_penalty(name)


@pytest.mark.parametrize("name", short_and_long(["gp", "random", "tpe"], lambda sampler: sampler == "tpe"))
def test_built_in_samplers_pass(name):
    check_sampler(name)
