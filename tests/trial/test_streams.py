"""A stateful method's stream keeps its order on any executor, also after losses and interruptions."""

import asyncio
import random
import signal
import subprocess
import sys

import numpy as np
import pytest

from fpp_sweep.core.datasets import open_dataset
from fpp_sweep.search.job import TrialStopped
from fpp_sweep.spec import tasks as cutting
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.trial.adapting import stream_of
from fpp_sweep.trial.trial import run_trial
from fpp_sweep.workers.scheduler import LostError
from tests.kit.long_forms import short_and_long
from tests.kit.names import DYNAPROMPT, TPT
from tests.kit.rows import RUNNING_MEAN, registered
from tests.kit.tasks import same_predictions
from tests.kit.workers import Gate, StoppingExecutor, executing, inline, plan_of

CONFIG = TrialConfig(method="running_mean", prompt="a photo of a")
BUFFER = TrialConfig(prompt="a photo of a").replace(
    {"method": DYNAPROMPT[TPT], "views.count": 8, "adapt.slots": 3, "adapt.lr": 0.05}
)
IMAGES = 200
DATA = open_dataset("digits", "val").head(IMAGES)
CHAINS = 4  # one for each of two datasets and two seeds
SHARDS = 3  # 150 images in shards of at most 64


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    monkeypatch.setattr(cutting, "SHARD", 64)
    with registered(RUNNING_MEAN):
        yield


@pytest.fixture
def plan(worker):
    return plan_of(worker, datasets=("digits", "scenes"), seeds=(0, 1), columns=("logits",))


@pytest.fixture(scope="module")
def one_pass(worker, tmp_path_factory):
    """Return the results of the same streams, each computed in one pass."""
    plan = plan_of(worker, datasets=("digits", "scenes"), seeds=(0, 1), columns=("logits",))
    with registered(RUNNING_MEAN):
        assert [len(shards) for shards in plan.tasks(CONFIG, "val").values()] == [1] * CHAINS
        return run_trial(plan, CONFIG, "val", inline(worker, plan, tmp_path_factory.mktemp("whole")))


def assert_same(found, expected):
    assert (found[0].average, found[0].datasets) == (expected[0].average, expected[0].datasets)
    for found_part, expected_part in zip(found[1], expected[1], strict=True):
        assert same_predictions(found_part.predictions, expected_part.predictions)


class DelaysAndLosses:
    """Delay tasks, lose given workers, and check that no two shards of a stream run at once."""

    def __init__(self, seed, lost=()):
        self.random, self.lost = random.Random(seed), list(lost)
        self.working, self.begun = set(), []

    async def __call__(self, task, what):
        stream = task.dataset, task.seed
        if what == "begins":
            assert stream not in self.working
            self.working.add(stream)
            self.begun.append((stream, task.start))
            await asyncio.sleep(self.random.random() / 50)
            return
        await asyncio.sleep(self.random.random() / 50)
        self.working.remove(stream)
        if (task.dataset, task.start) in self.lost:
            self.lost.remove((task.dataset, task.start))
            raise LostError("killed")


def test_shards_in_one_process_equal_one_pass_over_the_stream(worker, plan, one_pass, tmp_path):
    assert [len(shards) for shards in plan.tasks(CONFIG, "val").values()] == [SHARDS] * CHAINS
    assert_same(run_trial(plan, CONFIG, "val", inline(worker, plan, tmp_path)), one_pass)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "lost", [[], [("digits", 64)], [("digits", 0), ("scenes", 128)]], ids=["none lost", "one in the middle", "two"]
)
def test_slow_and_lost_workers_do_not_change_a_stream(worker, plan, one_pass, tmp_path, seed, lost):
    delays = DelaysAndLosses(seed, lost)
    with executing("scheduled", worker, plan, tmp_path, workers=3, around=delays, attempts=2) as executor:
        assert_same(run_trial(plan, CONFIG, "val", executor), one_pass)
        assert executor.scheduler.status().counts.lost == len(lost)
    assert len(delays.begun) == CHAINS * SHARDS + len(lost)
    for stream in {stream for stream, _ in delays.begun}:
        starts = [start for begun_stream, start in delays.begun if begun_stream == stream]
        assert starts == sorted(starts)


def stream_order(order, seed=0, **values):
    config = BUFFER.replace({"adapt.order": order})
    values = {"start": 0, "stop": IMAGES, **values}
    task = cutting.EvalTask(config=config, dataset="digits", split="val", seed=seed, **values)
    return stream_of(task, DATA)


def test_a_shuffled_order_depends_on_the_seed_and_has_every_sample_once():
    one_pass = stream_order("shuffled")
    assert sorted(one_pass) == list(range(IMAGES))
    assert one_pass.tolist() == stream_order("shuffled").tolist() != stream_order("shuffled", seed=1).tolist()
    parts = [stream_order("shuffled", start=0, stop=64), stream_order("shuffled", start=64)]
    assert np.concatenate(parts).tolist() == one_pass.tolist()


@pytest.mark.parametrize("order", short_and_long(["fair", "shuffled"], lambda order: order == "shuffled"))
def test_a_buffer_of_prompts_continues_from_the_previous_shard(worker, tmp_path, monkeypatch, order):
    """This holds for every order of the stream and after the loss of a worker; only the lost shard runs twice."""
    config = BUFFER.replace({"adapt.order": order})
    plan = plan_of(worker, columns=("logits",))
    monkeypatch.setattr(cutting, "SHARD", 1024)
    one_pass = run_trial(plan, config, "val", inline(worker, plan, tmp_path / "whole"))
    monkeypatch.setattr(cutting, "SHARD", 64)
    delays = DelaysAndLosses(0, [("digits", 64)])
    with executing("scheduled", worker, plan, tmp_path / "scheduled", workers=2, around=delays, attempts=2) as executor:
        assert_same(run_trial(plan, config, "val", executor), one_pass)
    assert [start for _, start in delays.begun] == [0, 64, 64, 128]


KILLED_PROGRAM = """
import os, signal, sys
from pathlib import Path
from fpp_sweep.spec import tasks
from fpp_sweep.core.methods.dynaprompt import DynaPrompt
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.trial.trial import run_trial
from fpp_sweep.trial.worker import Worker
from tests.kit.workers import inline, plan_of
from tests.trial.test_streams import BUFFER

tasks.SHARD, calls, predict = 64, [], DynaPrompt.predict
def killed_at_the_second_call(self, *arguments):
    calls.append(None)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return predict(self, *arguments)
DynaPrompt.predict = killed_at_the_second_call
worker = Worker(WorkerSpec(model="tiny", cache=sys.argv[1], device="cpu", threads=1, limit=150))
plan = plan_of(worker, columns=("logits",))
run_trial(plan, BUFFER, "val", inline(worker, plan, Path(sys.argv[2])))
"""


@pytest.mark.slow  # starts a process and kills it
def test_a_process_killed_in_the_second_shard_loses_only_that_shard(worker, tmp_path, monkeypatch):
    line = [sys.executable, "-c", KILLED_PROGRAM, str(worker.cache.root), str(tmp_path / "cut")]
    assert subprocess.run(line, check=False).returncode == -signal.SIGKILL
    (kept,) = (tmp_path / "cut").rglob("*.task")
    written = kept.stat().st_mtime_ns
    plan = plan_of(worker, columns=("logits",))
    found = run_trial(plan, BUFFER, "val", inline(worker, plan, tmp_path / "cut"))
    assert len(list((tmp_path / "cut").rglob("*.task"))) == SHARDS
    assert kept.stat().st_mtime_ns == written
    monkeypatch.setattr(cutting, "SHARD", 1024)
    assert_same(found, run_trial(plan, BUFFER, "val", inline(worker, plan, tmp_path / "whole")))


def test_results_come_in_the_order_of_the_stream(small, tmp_path):
    """The fair order sorts by a hash of the names; a shuffle depends on the seed."""
    plan = plan_of(small, seeds=(0, 1))
    found = {}
    for order in ("fair", "shuffled"):
        config = BUFFER.replace({"adapt.order": order})
        _, (first, second) = run_trial(plan, config, "val", inline(small, plan, tmp_path))
        found[order] = first.predictions
        assert (first.predictions.ids == second.predictions.ids) == (order != "shuffled")
    dataset = small.datasets.open("digits", "val")
    ids = {order: predictions.ids for order, predictions in found.items()}
    assert ids["fair"] == dataset.ids
    assert len(set(ids.values())) == 2
    labels = dict(zip(dataset.ids, dataset.labels.tolist(), strict=True))
    confidences = []
    for predictions in found.values():
        assert [labels[sample] for sample in predictions.ids] == predictions.labels.tolist()
        confidences.append(dict(zip(predictions.ids, predictions.confidence.tolist(), strict=True)))
    assert set(confidences[0]) == set(confidences[1])
    assert confidences[0] != confidences[1]


@pytest.mark.parametrize("kind", ["inline", "scheduled"])
@pytest.mark.parametrize("stop_after", [1, 5])
def test_an_interrupted_stream_continues_from_its_last_shard(worker, plan, one_pass, tmp_path, kind, stop_after):
    gate = Gate(stop_after)
    with executing(kind, worker, plan, tmp_path, workers=1, around=gate) as executor:
        with pytest.raises(TrialStopped):
            run_trial(plan, CONFIG, "val", StoppingExecutor(executor, stop_after))
        done = gate.open(executor)
    assert stop_after <= done == len(list(tmp_path.rglob("*.task"))) < CHAINS * SHARDS
    with executing("scheduled", worker, plan, tmp_path) as executor:  # a new scheduler
        assert_same(run_trial(plan, CONFIG, "val", executor), one_pass)
        assert executor.scheduler.status().counts.done == CHAINS * SHARDS - done


def test_shards_may_be_requested_in_any_order(worker, plan, one_pass, tmp_path):
    class Reversed:
        def __init__(self, executor):
            self.executor = executor

        def results(self, tasks, order=0):
            return self.executor.results(list(tasks)[::-1], order)

    found = run_trial(plan, CONFIG, "val", Reversed(inline(worker, plan, tmp_path)))
    assert_same(found, one_pass)
    assert set(found[0].seconds) == {"features", "adapt"}
