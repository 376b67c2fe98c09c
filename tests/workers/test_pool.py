"""What Ray is asked for and what its answers mean, without Ray: how many workers, on which machines, who repeats."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from fpp_sweep import catalogue, plugins
from fpp_sweep.errors import InputError
from fpp_sweep.facts import PluginFile, WorkerSpec
from fpp_sweep.keys import of_config
from fpp_sweep.trial.results import TaskFailed, TaskResult
from fpp_sweep.workers.keeper import LostError
from fpp_sweep.workers.pool import KeeperActor, Pool, WorkerActor, WorkerNeeds, _RayWorker, require_room
from tests.trial.made import KEYS, MODEL, evaluation
from tests.workers.crew import batches

WORKER = WorkerSpec(model="tiny")
ONE = WorkerNeeds(workers=1, cpus=1.0, gpus=0.0, env={})


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A keeper writes its workers' logs beside its tasks."""
    monkeypatch.chdir(tmp_path)


def keeper(needs=ONE, worker=WORKER):
    return KeeperActor(worker, needs, Path("tasks"), 1, 60.0)


def answering(value):
    """A remote method that gives this, or raises it, as Ray does with errors of its own."""

    def remote(*arguments):
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(value) if isinstance(value, RayError) else answer.set_result(value)
        return answer

    return SimpleNamespace(remote=remote)


@pytest.mark.parametrize(
    ("needs", "machines", "workers"),
    [
        ({}, {"CPU": 4.0, "GPU": 2.0}, 4),
        ({"cpus": 3.0}, {"CPU": 8.0}, 2),
        ({"cpus": 0.1}, {"CPU": 0.3}, 3),  # 0.3 / 0.1 is a little less than 3
        ({"gpus": 0.5}, {"CPU": 4.0, "GPU": 2.0}, 4),
        ({"cpus": 8.0}, {"CPU": 4.0}, 1),  # machines that hold one may yet come
        ({"gpus": 1.0}, {"CPU": 4.0}, 1),
        ({"workers": 7}, {"CPU": 4.0}, 7),
    ],
)
def test_there_are_as_many_workers_as_the_machines_hold_and_never_none(monkeypatch, needs, machines, workers):
    monkeypatch.setattr(ray, "cluster_resources", lambda: machines)
    assert keeper(replace(ONE, **{"workers": None, **needs}))._wanted() == workers


@pytest.mark.parametrize(
    ("needs", "complaint"),
    [
        ({"cpus": 4.0, "gpus": 0.5}, None),
        ({"cpus": 0.5, "gpus": 2.0}, None),
        ({"cpus": 4.5}, r"work\.cpus_per_worker=4\.5: the 2 nodes of this cluster have at most 4 CPUs"),
        ({"gpus": 2.5}, r"work\.gpus_per_worker=2\.5: the 2 nodes of this cluster have at most 2 GPUs"),
    ],
)
def test_a_worker_may_take_a_whole_machine_and_no_more(monkeypatch, needs, complaint):
    large, small, gone = {"CPU": 4.0, "GPU": 2.0}, {"CPU": 2.0}, {"CPU": 64.0, "GPU": 8.0}
    nodes = [{"Resources": resources, "Alive": resources is not gone} for resources in (small, large, gone)]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    asked = replace(ONE, **needs)
    if complaint is None:
        assert require_room(asked, may_grow=False) is None
        return
    with pytest.raises(InputError, match=complaint):
        require_room(asked, may_grow=False)
    assert "waiting for machines" in require_room(asked, may_grow=True)


async def test_ray_repeats_no_call_and_replaces_no_worker(monkeypatch):
    """Both are the keeper's to do, who counts the attempts."""
    asked = []

    def remote(**options):
        asked.append(options)
        handle = SimpleNamespace(call=answering(MODEL), place=answering("n1"))
        return lambda kind: SimpleNamespace(remote=lambda spec: handle)

    monkeypatch.setattr(ray, "remote", remote)
    assert (await keeper()._keeper.hire()).facts == MODEL
    assert [(each["max_task_retries"], each["max_restarts"]) for each in asked] == [(0, 0)]


@pytest.mark.parametrize(("elsewhere", "error"), [(False, TaskFailed), (True, LostError)])
async def test_a_model_that_cannot_be_loaded_is_a_failure_of_the_start_and_the_process_is_let_go(
    monkeypatch, elsewhere, error
):
    """For good, unless another worker might do better."""
    killed = []
    failure, handle = TaskFailed("unknown model 'tinny'", elsewhere=elsewhere), SimpleNamespace()
    handle.call = answering(None)
    handle.call.remote = lambda method: asyncio.sleep(0, failure)
    monkeypatch.setattr(ray, "remote", lambda **options: lambda kind: SimpleNamespace(remote=lambda spec: handle))
    monkeypatch.setattr(ray, "kill", killed.append)
    with pytest.raises(error, match="unknown model 'tinny'"):
        await keeper()._keeper.hire()
    assert killed == [handle]


async def test_what_a_process_says_is_a_result_and_its_death_a_loss(tmp_path):
    task, result = evaluation(), TaskResult(prompt=b"it")

    async def run(answer):
        return await _RayWorker(SimpleNamespace(call=answering(answer)), MODEL, ONE, tmp_path).run(task, (), "")

    assert await run(result) is result
    assert (await run(TaskFailed("no"))).reason == "no"
    with pytest.raises(LostError):
        await run(ActorDiedError())
    strange = RayTaskError("call", "Traceback ...\nTypeError: cannot\npickle", TypeError("cannot\npickle"))
    failure = await run(strange.as_instanceof_cause())
    assert failure.reason == f"{task.title}, worker 1 on here: TypeError: cannot pickle"
    assert "TypeError: cannot\npickle" in failure.details
    lines = (tmp_path / f"{MODEL.node}-{MODEL.pid}.log").read_text().splitlines()
    what = f"{task.title}, config {of_config(task.config)}"
    assert [line[20:].removeprefix(what) for line in lines[:4]] == [": begins", ": 0.000 s", ": begins", ": no"]
    assert lines[5].endswith(f"{what}: the worker is gone (The actor died unexpectedly before finishing this task.)")


async def test_a_worker_that_dies_while_it_is_asked_is_a_failure_that_says_so(tmp_path):
    actor = keeper()
    actor._keeper.workers[0] = _RayWorker(SimpleNamespace(call=answering(ActorDiedError())), MODEL, ONE, tmp_path)
    failure = await actor.call("describe", ["digits"], "val")
    assert failure.reason.startswith("worker 1 on here: died (")


def test_the_keeper_knows_the_rows_of_plugins_from_which_keys_are_made():
    text = "import fpp_sweep\nfrom fpp_sweep import plugins\n@plugins.method(views=1)\ndef mine(**how): ...\n"
    file = PluginFile(name="mine", text=text, digest="d1")
    actor = keeper(worker=replace(WORKER, plugins=(file,)))
    try:
        asyncio.run(actor.begin(KEYS))
        assert actor._keeper.keys.of(evaluation(method="mine"))
    finally:
        plugins.unload(file)
    assert "mine" not in catalogue.METHODS


async def test_the_keepers_process_gives_results_and_failures_as_values(keep, tmp_path):
    actor, crew = keeper(), keep(attempts=1)
    actor._keeper = crew.keeper
    task, other = batches(2)
    assert (await actor.result(task, 1)).state == task.title.encode()
    crew.does = None  # nothing that can be called: the worker raises
    failure = await actor.result(other, 1)
    assert type(failure) is TaskFailed
    assert failure.reason.startswith(f"{other.title}, worker 0 on here: its worker died (TypeError")
    actor._keeper.keys = None  # whatever goes wrong in the keeper itself
    assert (await actor.result(task, 1)).reason.startswith(f"{task.title}: AttributeError")


def test_a_worker_that_cannot_begin_says_why_whatever_it_is_asked(tmp_path):
    actor = WorkerActor(WorkerSpec(model="tiny", dataset_file=str(tmp_path / "none.yaml")))
    for method in ("facts", "describe"):
        assert "none.yaml" in actor.call(method).reason


def test_a_pool_hands_results_over_as_they_end_and_gives_up_what_is_left_when_it_is_closed(monkeypatch):
    tasks = batches(4)
    asked, cancelled, ended = [], [], [2, 0]

    def remote(task, order):
        asked.append((task, order))
        return task.start // 64

    def wait(references, num_returns):
        done = next(each for each in ended if each in references)
        return [done], [each for each in references if each != done]

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", lambda reference, timeout: TaskResult(prompt=b"%d" % reference))
    monkeypatch.setattr(ray, "cancel", cancelled.append)
    results = Pool(SimpleNamespace(result=SimpleNamespace(remote=remote))).results(tasks, 7)
    assert [(task, result.prompt) for task, result in (next(results), next(results))] == [
        (tasks[2], b"2"),
        (tasks[0], b"0"),
    ]
    results.close()
    assert asked == [(task, 7) for task in tasks]
    assert cancelled == [1, 3]


def test_a_pool_raises_a_failure_and_gives_up_the_rest(monkeypatch):
    cancelled = []
    monkeypatch.setattr(ray, "wait", lambda references, num_returns: (references[:1], references[1:]))
    monkeypatch.setattr(ray, "get", lambda reference, timeout: TaskFailed("no"))
    monkeypatch.setattr(ray, "cancel", cancelled.append)
    remote = SimpleNamespace(result=SimpleNamespace(remote=lambda task, order: task.start))
    with pytest.raises(TaskFailed, match="no"):
        list(Pool(remote).results(batches(3), 1))
    assert set(cancelled) >= {64, 128}
