"""The interface to Ray: needs and answers of workers, the scheduler's process, and the pool of a real session."""

import asyncio
import pickle
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import TaskKeys, config_key
from fpp_sweep.spec.specs import PluginFile, WorkerSpec
from fpp_sweep.trial.results import TaskFailed, TaskResult
from fpp_sweep.workers.actors import RayWorker, SchedulerActor, WorkerActor, start_pool
from fpp_sweep.workers.scheduler import LostError
from fpp_sweep.workers.session import LostSession, WorkerNeeds, require_room, session
from tests.kit.scheduler import USER_ERROR, fail_for_good, only_for, shards
from tests.kit.tasks import KEYS, MODEL, evaluation
from tests.kit.waiting import LONG, wait_for

SPEC = WorkerSpec(model="tiny")
ONE_CPU = WorkerNeeds(workers=1, cpus=1.0, gpus=0.0, env={})


@pytest.fixture(autouse=True)
def _empty_working_folder(tmp_path, monkeypatch):
    """Use an empty working folder: workers write their logs beside the folder of tasks."""
    monkeypatch.chdir(tmp_path)


def scheduler_actor(needs=ONE_CPU, spec=SPEC):
    return SchedulerActor(spec, needs, Path("tasks"), 1, 60.0)


def answering(value):
    """Return a remote method that answers with the value; it raises the value if that is an error of Ray."""

    def remote(*arguments):
        answer = asyncio.get_running_loop().create_future()
        if isinstance(value, RayError):
            answer.set_exception(value)
        else:
            answer.set_result(value)
        return answer

    return SimpleNamespace(remote=remote)


# ------------------------------------------------------------ number and size of workers


@pytest.mark.parametrize(
    ("needs", "machines", "workers"),
    [
        ({}, [{"CPU": 4.0, "GPU": 2.0}], 4),
        ({"cpus": 3.0}, [{"CPU": 8.0}], 2),
        ({"cpus": 3.0}, [{"CPU": 4.0}, {"CPU": 4.0}, {"CPU": 7.0}], 4),  # no worker has cores of two machines
        ({"cpus": 0.1}, [{"CPU": 0.3}], 3),  # in floating point, 0.3 / 0.1 is slightly less than 3
        ({"gpus": 0.5}, [{"CPU": 4.0, "GPU": 2.0}], 4),
        ({"gpus": 0.4}, [{"CPU": 64.0, "GPU": 8.0}], 16),  # and none has parts of two GPUs
        ({"gpus": 0.6}, [{"CPU": 64.0, "GPU": 2.0}], 2),
        ({"gpus": 2.0}, [{"CPU": 64.0, "GPU": 3.0}, {"CPU": 64.0, "GPU": 3.0}], 2),
        ({"cpus": 4.0, "gpus": 0.125}, [{"CPU": 16.0, "GPU": 1.0}], 4),
        ({"cpus": 0.0, "gpus": 1.0}, [{"CPU": 4.0, "GPU": 2.0}, {"CPU": 4.0}], 2),
        ({"cpus": 8.0}, [{"CPU": 4.0}], 1),  # a larger machine may join
        ({"gpus": 1.0}, [{"CPU": 4.0}], 1),
    ],
)
def test_the_machines_decide_the_number_of_workers(needs, machines, workers):
    assert replace(ONE_CPU, workers=None, **needs).workers_with_room(machines) == workers


@pytest.mark.parametrize(
    ("needs", "complaint"),
    [
        ({"cpus": 4.0, "gpus": 0.5}, None),
        ({"cpus": 0.5, "gpus": 2.0}, None),
        ({"cpus": 4.5}, "work.cpus_per_worker=4.5: the 2 nodes of this cluster have at most 4 CPUs"),
        ({"gpus": 2.5}, "work.gpus_per_worker=2.5: the 2 nodes of this cluster have at most 2 GPUs"),
    ],
)
def test_a_worker_may_take_at_most_a_whole_machine(needs, complaint):
    machines = [{"CPU": 2.0}, {"CPU": 4.0, "GPU": 2.0}]
    needs = replace(ONE_CPU, **needs)
    if complaint is None:
        assert require_room(machines, needs, may_grow=False) is None
        return
    with pytest.raises(InputError, match=f"^{re.escape(complaint)}; lower work"):
        require_room(machines, needs, may_grow=False)
    assert require_room(machines, needs, may_grow=True) == f"{complaint}; waiting for machines that have more"


def test_a_worker_that_cannot_start_returns_the_reason_to_every_call(tmp_path):
    actor = WorkerActor(WorkerSpec(model="tiny", dataset_file=str(tmp_path / "none.yaml")))
    for failure in (actor.model_info(), actor.describe([], "val"), actor.run(pickle.dumps((evaluation(), (), "")))):
        assert "none.yaml" in failure.reason


# ------------------------------------------------------------ answers of workers


async def test_a_workers_answer_is_a_result_or_a_failure_and_its_death_a_loss(tmp_path):
    task, result = evaluation(), TaskResult(prompt=b"a prompt")

    async def run(answer):
        worker = RayWorker(SimpleNamespace(run=answering(answer)), MODEL, tmp_path)
        return await worker.run(task, (), "", KEYS.data_of(task))

    assert (await run(pickle.dumps(result))).prompt == b"a prompt"
    assert (await run(TaskFailed("no"))).reason == "no"
    with pytest.raises(LostError):
        await run(ActorDiedError())
    error_of_ray = RayTaskError("run", "Traceback ...\nTypeError: cannot\npickle", TypeError("cannot\npickle"))
    failure = await run(error_of_ray.as_instanceof_cause())
    assert failure.reason == f"{task.title}, worker 1 on here: TypeError: cannot pickle"
    assert "TypeError: cannot\npickle" in failure.details
    lines = (tmp_path / f"{MODEL.node}-{MODEL.pid}.log").read_text().splitlines()
    label = f"{task.title}, config {config_key(task.config)}"
    assert [line[20:].removeprefix(label) for line in lines[:4]] == [": begins", ": 0.000 s", ": begins", ": no"]
    assert lines[5].endswith(f"{label}: the worker died (The actor died unexpectedly before finishing this task.)")


# ------------------------------------------------------------ the scheduler's process


def test_the_scheduler_knows_the_plugins_rows_on_which_keys_depend():
    text = "import fpp_sweep\nfrom fpp_sweep import method\n@method(views=1)\ndef mine(**options): ...\n"
    file = PluginFile(name="mine", path="mine.py", text=text, digest="d1")
    actor = scheduler_actor(spec=replace(SPEC, plugins=(file,)))
    try:
        asyncio.run(actor.begin(KEYS))
        assert actor._scheduler.keys.of(evaluation(method="mine"))
    finally:
        plugins.unload(file)
    assert "mine" not in catalogue.METHODS


async def test_the_scheduler_yields_results_and_failures_as_values(start):
    actor, harness = scheduler_actor(), start(only_for(lambda task: task.start, fail_for_good))
    actor._scheduler = harness.scheduler
    tasks = shards(2)
    replies = {}
    async for message in actor.results(pickle.dumps((tasks, 1))):
        replies.update(pickle.loads(message))
    assert replies[0].state == tasks[0].title.encode()
    assert (type(replies[1]), replies[1].reason) == (TaskFailed, USER_ERROR)


async def test_work_is_counted_by_run_and_workers_that_start_before_the_first_run_belong_to_it(start):
    harness = start()
    await harness.results(shards(2))
    assert (harness.counts.loads, harness.counts.done) == (1, 2)
    harness.scheduler.begin(KEYS)
    assert (harness.counts.loads, harness.counts.done) == (0, 0)


# ------------------------------------------------------------ the pool of a real session


@pytest.mark.nightly
@pytest.mark.slow  # starts Ray and a worker
def test_a_stopped_trials_tasks_leave_the_queue_and_a_dead_scheduler_ends_every_wait(tmp_path):
    spec = WorkerSpec(model="tiny", cache=str(tmp_path / "cache"), device="cpu", limit=640)
    tasks = [evaluation(dataset="scenes", split="test", seed=seed, **{"views.count": 2}) for seed in range(200)]
    with session(None, cpus=1, verbose=False):
        pool = start_pool(spec, ONE_CPU, tmp_path / "tasks", attempts=1, timeout=LONG)
        datasets = {("scenes", "test"): pool.describe(["scenes"], "test")[0]}
        pool.begin(TaskKeys(pool.open(), datasets))
        results = pool.results(tasks, 1)
        task, result = next(results)
        assert task in tasks
        assert result.read_predictions() is not None
        assert pool.status().queued
        results.close()
        wait_for(lambda: not pool.status().queued)
        assert pool.status().counts.done < len(tasks)
        results = pool.results(tasks[100:], 2)
        next(results)
        ray.kill(pool.scheduler)
        with pytest.raises(LostSession, match="the scheduler died"):
            list(results)
        with pytest.raises(LostSession, match="the scheduler died"):
            pool.status()
