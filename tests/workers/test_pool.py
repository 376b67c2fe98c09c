"""What Ray is asked for and what its answers mean, without Ray: how many workers, on which machines, who repeats."""

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import of_config
from fpp_sweep.spec.specs import PluginFile, WorkerSpec
from fpp_sweep.trial.results import TaskFailed, TaskResult
from fpp_sweep.workers import actors, requests
from fpp_sweep.workers.actors import Pool, SchedulerActor, WorkerActor, WorkerNeeds, _RayWorker, require_room
from fpp_sweep.workers.requests import PendingRequest
from fpp_sweep.workers.scheduler import LostError
from tests.trial.made import KEYS, MODEL, evaluation
from tests.workers.crew import batches, hangs, until

WORKER = WorkerSpec(model="tiny")
ONE = WorkerNeeds(workers=1, cpus=1.0, gpus=0.0, env={})


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A keeper writes its workers' logs beside its tasks."""
    monkeypatch.chdir(tmp_path)


def keeper(needs=ONE, worker=WORKER):
    return SchedulerActor(worker, needs, Path("tasks"), 1, 60.0)


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
    text = "import fpp_sweep\nfrom fpp_sweep import method\n@method(views=1)\ndef mine(**how): ...\n"
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

    async def answer(task):
        name = task.title + str(crew.does)
        await actor.ask(name, {5: task}, 1)
        ((place, result),) = await actor.ended(name, 0)
        assert place == 5
        return result

    task, other = batches(2)
    assert (await answer(task)).state == task.title.encode()
    crew.does = None  # nothing that can be called: the worker raises
    failure = await answer(other)
    assert type(failure) is TaskFailed
    assert failure.reason.startswith(f"{other.title}, worker 0 on here: its worker died (TypeError")
    actor._keeper.keys = None  # whatever goes wrong in the keeper itself
    assert (await answer(batches(3)[2])).reason.startswith(f"{batches(3)[2].title}: AttributeError")


def answers(ends):
    """What tasks come to that end when they are told to."""

    async def answer(place):
        await ends[place].wait()
        return TaskResult(prompt=b"%d" % place)

    return {place: answer(place) for place in ends}


def places(ended):
    return [place for place, _ in ended]


async def test_what_has_ended_is_handed_over_together_and_again_until_it_is_taken():
    ends = {place: asyncio.Event() for place in range(4)}
    wish = PendingRequest(answers(ends))
    waiting = asyncio.create_task(wish.ended_after(0))
    await asyncio.sleep(0)
    ends[2].set()
    ends[0].set()
    assert places(await waiting) == [2, 0]
    assert places(await wish.ended_after(0)) == [2, 0]  # the answer was lost on its way
    ends[1].set()
    await asyncio.sleep(0.01)
    assert places(await wish.ended_after(1)) == [0, 1]
    assert places(await wish.ended_after(0)) == [0, 1]  # an older call that comes late takes nothing back
    ends[3].set()
    assert places(await wish.ended_after(3)) == [3]


async def test_a_trial_that_waits_for_long_asks_again(monkeypatch):
    monkeypatch.setattr(requests, "LONGEST", 0.01)
    wish = PendingRequest(answers({0: asyncio.Event()}))
    assert await wish.ended_after(0) == []
    wish.give_up()


async def test_what_nobody_comes_back_for_is_given_up_and_begun_again_for_who_does(keep, monkeypatch):
    """Its trial's process died, or stood still for longer than a dead one would be waited for."""
    actor, crew = keeper(), keep(does=hangs)
    actor._keeper = crew.keeper
    first, second, third = batches(3)
    await actor.ask("dead", {0: first, 1: second}, 1)
    await until(lambda: crew.status.running == 1)
    assert crew.status.queued == 1
    await actor.ask("alive", {0: third}, 2)
    await until(lambda: crew.status.queued == 2)
    monkeypatch.setattr(actors, "FORGOTTEN", -1.0)
    await actor.ask("next", {}, 3)
    assert await actor.ended("dead", 0) is None
    assert await actor.ended("alive", 0) is None
    await until(lambda: crew.status.queued == 0)
    await actor.ask("alive", {0: third}, 2)
    await until(lambda: crew.status.queued == 1)


def test_a_worker_that_cannot_begin_says_why_whatever_it_is_asked(tmp_path):
    actor = WorkerActor(WorkerSpec(model="tiny", dataset_file=str(tmp_path / "none.yaml")))
    for method in ("facts", "describe"):
        assert "none.yaml" in actor.call(method).reason


def test_a_worker_tells_from_another_thread_how_far_what_takes_long_is(tmp_path, monkeypatch):
    monkeypatch.setattr(actors, "SLOW", -1.0)
    actor = WorkerActor(WorkerSpec(model="tiny", cache=str(tmp_path), limit=640))
    assert actor.doing() == ""
    task = evaluation(dataset="scenes", split="test", stop=640, **{"views.count": 2})
    seen = set()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(actor.call, "run", task, ())
        while not running.done():
            seen.add(actor.doing())
            time.sleep(0.01)  # or it would keep the interpreter to itself
    features = {doing for doing in seen if re.fullmatch(r"scenes: features: \d+/640 images, [\d.]+/s, .* left", doing)}
    assert features
    assert actor.doing() == ""
    monkeypatch.setattr(actors, "SLOW", 1e9)
    actor._show("scenes: features", 3, "images").advance()
    assert actor.doing() == ""


class Asked:
    """A keeper as a pool reaches it, which gives these answers to its calls for what has ended."""

    def __init__(self, *ended):
        self.calls, self._ended = [], list(ended)

    def __getattr__(self, method):
        def remote(*arguments):
            self.calls.append((method, *arguments[1:]))
            return self._ended.pop(0) if method == "ended" else None

        return SimpleNamespace(remote=remote)


def result(place):
    return place, TaskResult(prompt=b"%d" % place)


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(ray, "get", lambda reference, timeout: reference)


def test_a_pool_hands_results_over_as_they_end_and_gives_up_what_is_left_when_it_is_closed(at_once):
    tasks = batches(4)
    remote = Asked([result(2)], [], [result(0)])
    results = Pool(remote).results(tasks, 7)
    assert [(task, came.prompt) for task, came in (next(results), next(results))] == [
        (tasks[2], b"2"),
        (tasks[0], b"0"),
    ]
    results.close()
    everything = dict(enumerate(tasks))
    assert [call[0] for call in remote.calls] == ["ask", "ended", "ended", "ended", "forget"]
    assert everything.keys() - remote.calls[0][1].keys() == {0, 2}  # the same dictionary: what is still waited for
    assert [call[1] for call in remote.calls[1:4]] == [0, 1, 1]


def test_a_keeper_that_follows_one_that_died_is_asked_for_what_is_missing(at_once):
    tasks = batches(3)
    remote = Asked([result(1)], None, [result(2)], [result(0)])
    assert [task for task, _ in Pool(remote).results(tasks, 7)] == [tasks[1], tasks[2], tasks[0]]
    assert [call[0] for call in remote.calls] == ["ask", "ended", "ended", "ask", "ended", "ended", "forget"]
    assert [call[1] for call in remote.calls if call[0] == "ended"] == [0, 1, 0, 1]


def test_a_pool_raises_a_failure_and_gives_up_the_rest(at_once):
    remote = Asked([result(1), (0, TaskFailed("no")), result(2)])
    with pytest.raises(TaskFailed, match="no"):
        list(Pool(remote).results(batches(3), 1))
    assert [call[0] for call in remote.calls] == ["ask", "ended", "forget"]


def test_nothing_is_shared_any_more_once_a_worker_runs_other_code(monkeypatch, tmp_path):
    made_with = iter(["then", "then", "now"])

    async def start(worker, needs, logs):
        return SimpleNamespace(facts=replace(MODEL, made_with=next(made_with)))

    async def look():
        actor = keeper()
        monkeypatch.setattr(actor, "_hire", lambda: None)
        found = []
        for _ in range(3):
            await actor._start(WORKER, tmp_path)
            if not found:
                await actor.begin(KEYS, tmp_path / "shared")
            found.append(actor._keeper.store.shared is not None)
        return found

    monkeypatch.setattr(_RayWorker, "start", start)
    assert asyncio.run(look()) == [True, True, False]
