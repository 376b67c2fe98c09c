"""The interface to Ray, tested without Ray: options and answers of actors, restarts, and requests of trials."""

import asyncio
import pickle
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
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.keys import config_key
from fpp_sweep.spec.specs import PluginFile, WorkerSpec
from fpp_sweep.trial.results import TaskFailed, TaskResult
from fpp_sweep.workers import actors
from fpp_sweep.workers import scheduler as scheduler_module
from fpp_sweep.workers.actors import Pool, RayWorker, SchedulerActor, WorkerActor, WorkerLocation
from fpp_sweep.workers.needs import WorkerNeeds, require_room
from fpp_sweep.workers.ray_session import machines_of_session
from fpp_sweep.workers.resources import wanted_workers
from fpp_sweep.workers.scheduler import LostError, PendingRequest
from tests.kit.scheduler import hang, let_others_run, shards, until
from tests.kit.tasks import KEYS, MODEL, evaluation

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


def test_the_bar_of_a_worker_prints_nothing_because_the_driver_shows_it(capsys):
    with WorkerActor.__new__(WorkerActor)._show_progress("features", 3, "images") as bar:
        bar.advance(3)
        bar.note("an image cannot be read")
    assert bar.done == 3
    assert capsys.readouterr().err == ""


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
        ({"workers": 7}, [{"CPU": 4.0}], 7),
    ],
)
def test_the_machines_decide_the_number_of_workers_unless_it_is_given(monkeypatch, needs, machines, workers):
    nodes = [{"Resources": machine, "Alive": True} for machine in machines]
    monkeypatch.setattr(ray, "nodes", lambda: [*nodes, {"Resources": {"CPU": 64.0, "GPU": 8.0}, "Alive": False}])
    assert wanted_workers(replace(ONE_CPU, **{"workers": None, **needs})) == workers


def test_a_worker_beside_a_gpu_may_use_as_much_of_its_machine_as_of_its_gpus(monkeypatch, tmp_path):
    """Ray is replaced by one that has put the worker on the larger of two machines."""
    context = SimpleNamespace(get_assigned_resources=lambda: {"CPU": 1.0, "GPU": 0.5}, get_node_id=lambda: "large")
    nodes = [
        {"NodeID": name, "Resources": {"CPU": 64.0, "GPU": gpus}} for name, gpus in (("small", 1.0), ("large", 8.0))
    ]
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    actor = WorkerActor(WorkerSpec(model="tiny", device="cuda", cache=str(tmp_path)))
    assert actor._worker.spec.machine_share == 0.5 / 8


@pytest.mark.parametrize(
    ("needs", "complaint"),
    [
        ({"cpus": 4.0, "gpus": 0.5}, None),
        ({"cpus": 0.5, "gpus": 2.0}, None),
        ({"cpus": 4.5}, "work.cpus_per_worker=4.5: the 2 nodes of this cluster have at most 4 CPUs"),
        ({"gpus": 2.5}, "work.gpus_per_worker=2.5: the 2 nodes of this cluster have at most 2 GPUs"),
    ],
)
def test_a_worker_may_take_at_most_a_whole_machine(monkeypatch, needs, complaint):
    small, large, dead = {"CPU": 2.0}, {"CPU": 4.0, "GPU": 2.0}, {"CPU": 64.0, "GPU": 8.0}
    nodes = [{"Resources": resources, "Alive": resources is not dead} for resources in (small, large, dead)]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    needs = replace(ONE_CPU, **needs)
    if complaint is None:
        assert require_room(machines_of_session(), needs, may_grow=False) is None
        return
    with pytest.raises(InputError, match=f"^{re.escape(complaint)}; lower work"):
        require_room(machines_of_session(), needs, may_grow=False)
    assert (
        require_room(machines_of_session(), needs, may_grow=True) == f"{complaint}; waiting for machines that have more"
    )


# ------------------------------------------------------------ starts of workers


async def test_ray_retries_no_task_and_restarts_no_worker(monkeypatch):
    """The scheduler itself retries tasks and restarts workers, and counts the attempts."""
    all_options = []

    def remote(**options):
        all_options.append(options)
        actor = SimpleNamespace(model_info=answering(MODEL), location=answering(WorkerLocation("n1", ())))
        return lambda kind: SimpleNamespace(remote=lambda spec: actor)

    monkeypatch.setattr(ray, "remote", remote)
    assert (await scheduler_actor()._scheduler.start_worker()).info == MODEL
    (options,) = all_options
    assert (options["max_task_retries"], options["max_restarts"]) == (0, 0)


async def test_the_first_call_starts_the_workers_and_later_calls_do_not(monkeypatch):
    starts = []

    async def start(*arguments):
        starts.append(arguments)
        raise TaskFailed("no model")

    monkeypatch.setattr(RayWorker, "start", start)
    actor = scheduler_actor()
    await asyncio.sleep(0)
    assert starts == []
    for _ in range(2):
        assert (await actor.open()).reason == "no model"
    assert len(starts) == 1


@pytest.mark.parametrize(("retry_elsewhere", "error"), [(False, TaskFailed), (True, LostError)])
async def test_a_model_that_cannot_be_loaded_fails_the_start_and_ends_the_process(monkeypatch, retry_elsewhere, error):
    """The failure is final unless another worker might succeed."""
    killed = []
    failure = TaskFailed("unknown model 'tinny'", retry_elsewhere=retry_elsewhere)
    actor = SimpleNamespace(model_info=answering(failure))
    monkeypatch.setattr(ray, "remote", lambda **options: lambda kind: SimpleNamespace(remote=lambda spec: actor))
    monkeypatch.setattr(ray, "kill", killed.append)
    with pytest.raises(error, match="unknown model 'tinny'"):
        await scheduler_actor()._scheduler.start_worker()
    assert killed == [actor]


def test_a_worker_that_cannot_start_returns_the_reason_to_every_call(tmp_path):
    actor = WorkerActor(WorkerSpec(model="tiny", dataset_file=str(tmp_path / "none.yaml")))
    for failure in (actor.model_info(), actor.describe([], "val"), actor.run(pickle.dumps((evaluation(), (), "")))):
        assert "none.yaml" in failure.reason


async def test_results_are_no_longer_shared_once_a_worker_runs_other_code(monkeypatch, tmp_path):
    versions = iter(["first", "first", "second"])

    async def start(spec, needs, logs):
        return SimpleNamespace(info=replace(MODEL, made_with=next(versions)))

    monkeypatch.setattr(RayWorker, "start", start)
    actor = scheduler_actor()
    monkeypatch.setattr(actor, "_start_workers", lambda: None)
    await actor._start_worker()
    await actor.begin(KEYS, tmp_path / "shared")
    assert actor._scheduler.store.shared is not None
    await actor._start_worker()
    assert actor._scheduler.store.shared is not None
    await actor._start_worker()
    assert actor._scheduler.store.shared is None


# ------------------------------------------------------------ answers of workers


async def test_a_workers_answer_is_a_result_or_a_failure_and_its_death_a_loss(tmp_path):
    task, result = evaluation(), TaskResult(prompt=b"a prompt")

    async def run(answer):
        worker = RayWorker(SimpleNamespace(run=answering(answer)), MODEL, ONE_CPU, tmp_path)
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


async def test_the_death_of_a_worker_during_a_query_is_a_failure_that_names_the_worker(tmp_path):
    actor = scheduler_actor()
    worker = RayWorker(SimpleNamespace(describe=answering(ActorDiedError())), MODEL, ONE_CPU, tmp_path)
    actor._scheduler._assignment.add(worker)
    actor._starting_workers = asyncio.create_task(asyncio.sleep(0))  # no further workers start
    failure = await actor.describe(["digits"], "val")
    assert type(failure) is MachineError
    assert str(failure).startswith("worker 1 on here: died (")


async def test_a_query_is_repeated_on_another_worker_after_a_death(tmp_path):
    actor = scheduler_actor()
    actor._scheduler.attempts = 2
    actor._starting_workers = asyncio.create_task(asyncio.sleep(0))  # no further workers start
    for answer in (ActorDiedError(), "from the second worker"):
        processes = SimpleNamespace(describe=answering(answer), check=answering(answer))
        actor._scheduler._assignment.add(RayWorker(processes, MODEL, ONE_CPU, tmp_path))
    assert await actor.describe(["digits"], "val") == "from the second worker"
    assert await actor.check([], []) == "from the second worker"


async def test_a_query_after_a_death_waits_for_the_next_worker(tmp_path):
    actor = scheduler_actor()
    actor._scheduler.attempts = 2
    actor._starting_workers = asyncio.create_task(asyncio.sleep(0))
    dead, alive = (
        RayWorker(SimpleNamespace(check=answering(answer)), MODEL, ONE_CPU, tmp_path)
        for answer in (ActorDiedError(), "alive")
    )
    actor._scheduler._assignment.add(dead)
    query = asyncio.create_task(actor.check([], []))
    await let_others_run()
    actor._scheduler._assignment.add(alive)
    assert await query == "alive"


def test_a_worker_reports_the_progress_of_long_steps_from_another_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(actors, "PROGRESS_DELAY", -1.0)
    actor = WorkerActor(WorkerSpec(model="tiny", cache=str(tmp_path), limit=640))
    assert actor.doing() == ""
    task = evaluation(dataset="scenes", split="test", stop=640, **{"views.count": 2})
    reports = set()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(actor.run, pickle.dumps((task, (), "")))
        while not running.done():
            reports.add(actor.doing())
            time.sleep(0.01)  # lets the other thread run
    progress = r"scenes: features: \d+/640 images, [\d.]+/s, .* left"
    assert [report for report in reports if re.fullmatch(progress, report)]
    assert actor.doing() == ""
    monkeypatch.setattr(actors, "PROGRESS_DELAY", 1e9)
    actor._show_progress("scenes: features", 3, "images").advance()
    assert actor.doing() == ""


async def test_only_a_worker_with_a_long_task_is_asked_for_its_progress(tmp_path, monkeypatch):
    asked = []

    async def doing():
        asked.append(1)
        return "digits: features"

    calls = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=doing))
    worker = RayWorker(SimpleNamespace(doing=calls), MODEL, ONE_CPU, tmp_path)
    assert await worker._progress() == ""  # idle
    worker._task_began = time.monotonic()
    monkeypatch.setattr(actors, "PROGRESS_DELAY", 1e9)
    assert await worker._progress() == ""
    assert asked == []
    monkeypatch.setattr(actors, "PROGRESS_DELAY", -1.0)
    assert await worker._progress() == "digits: features"


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


async def test_the_scheduler_returns_results_and_failures_as_values(start):
    actor, harness = scheduler_actor(), start(attempts=1)
    actor._scheduler = harness.scheduler

    async def reply(task, name):
        assert await actor.request(name, {5: task}, 1)
        ((index, value),) = pickle.loads(await actor.collect_since(name, 0))
        assert index == 5
        return value

    first, second, third = shards(3)
    assert (await reply(first, "succeeds")).state == first.title.encode()
    harness.behaviour = None  # None cannot be called, so the worker raises TypeError
    failure = await reply(second, "fails")
    assert type(failure) is TaskFailed
    assert failure.reason.startswith(f"{second.title}, worker 0 on here: its worker died (TypeError")
    actor._scheduler.keys = "damaged"  # makes the scheduler itself raise an error
    assert (await reply(third, "damaged")).reason.startswith(f"{third.title}: AttributeError")


async def test_a_restarted_scheduler_refuses_requests_until_it_has_the_keys_of_the_run(start):
    actor, harness = scheduler_actor(), start()
    actor._scheduler = harness.scheduler
    actor._starting_workers = harness.starting
    actor._scheduler.keys = None
    (task,) = shards(1)
    assert not await actor.request("trial", {0: task}, 1)
    await actor.resume(KEYS)
    assert await actor.request("trial", {0: task}, 1)
    assert indices(pickle.loads(await actor.collect_since("trial", 0))) == [0]
    await actor.resume(KEYS)  # a second trial sends the keys too, which changes nothing
    assert harness.counts.done == 1


async def test_work_is_counted_by_run_and_workers_that_start_before_the_first_run_belong_to_it(start):
    harness = start()
    await harness.results(shards(2))
    assert (harness.counts.loads, harness.counts.done) == (1, 2)
    harness.scheduler.begin(KEYS)
    assert (harness.counts.loads, harness.counts.done) == (0, 0)


async def test_an_expired_request_is_cancelled_and_may_be_made_again(start, monkeypatch):
    """A request expires if its trial's process died or was too slow; a slow process may request again."""
    actor, harness = scheduler_actor(), start(behaviour=hang)
    actor._scheduler = harness.scheduler
    first, second, third = shards(3)
    await actor.request("dead", {0: first, 1: second}, 1)
    await until(lambda: harness.status.running == 1)
    assert harness.status.queued == 1
    await actor.request("slow", {0: third}, 2)
    await until(lambda: harness.status.queued == 2)
    monkeypatch.setattr(actors, "REQUEST_EXPIRY", -1.0)
    await actor.request("next", {}, 3)
    assert await actor.collect_since("dead", 0) is None
    assert await actor.collect_since("slow", 0) is None
    await until(lambda: harness.status.queued == 0)
    await actor.request("slow", {0: third}, 2)
    await until(lambda: harness.status.queued == 1)


# ------------------------------------------------------------ requests of trials


def results_at(events):
    """Return awaitable results that end when their events are set."""

    async def wait_for(index):
        await events[index].wait()
        return TaskResult(prompt=b"%d" % index)

    return {index: wait_for(index) for index in events}


def indices(replies):
    return [index for index, _ in replies]


async def test_results_are_returned_together_and_again_until_they_are_taken():
    events = {index: asyncio.Event() for index in range(4)}
    request = PendingRequest(results_at(events))
    collecting = asyncio.create_task(request.collect_since(0))
    await asyncio.sleep(0)
    events[2].set()
    events[0].set()
    assert indices(await collecting) == [2, 0]
    assert indices(await request.collect_since(0)) == [2, 0]  # as if the first reply had been lost
    events[1].set()
    await asyncio.sleep(0.01)
    assert indices(await request.collect_since(1)) == [0, 1]
    assert indices(await request.collect_since(0)) == [0, 1]  # an older call that arrives late gets the same reply
    events[3].set()
    assert indices(await request.collect_since(3)) == [3]


async def test_a_reply_without_results_comes_after_a_while(monkeypatch):
    monkeypatch.setattr(scheduler_module, "MAX_REPLY_DELAY", 0.01)
    request = PendingRequest(results_at({0: asyncio.Event()}))
    assert await request.collect_since(0) == []
    request.cancel()


class FakeScheduler:
    """A scheduler's handle with given replies to `collect_since`; it refuses the first `refusals` requests."""

    def __init__(self, *replies, refusals=0):
        self.calls = []
        self._replies = list(replies)
        self._refusals = refusals

    @property
    def methods(self):
        return [method for method, *_ in self.calls]

    def __getattr__(self, method):
        def remote(*arguments):
            self.calls.append((method, *arguments))
            if method == "collect_since":
                replies = self._replies.pop(0)
                return None if replies is None else pickle.dumps(replies)
            if method == "request" and self._refusals:
                self._refusals -= 1
                return False
            return True

        return SimpleNamespace(remote=remote)


def reply(index):
    return index, TaskResult(prompt=b"%d" % index)


@pytest.fixture
def without_waiting(monkeypatch):
    monkeypatch.setattr(ray, "get", lambda call, timeout: call)


@pytest.mark.usefixtures("without_waiting")
def test_a_pool_yields_results_as_they_end_and_cancels_the_rest_when_closed():
    tasks = shards(4)
    scheduler = FakeScheduler([reply(2)], [], [reply(0)])
    results = Pool(scheduler).results(tasks, 7)
    (first_task, first_result), (second_task, second_result) = next(results), next(results)
    assert (first_task, first_result.prompt) == (tasks[2], b"2")
    assert (second_task, second_result.prompt) == (tasks[0], b"0")
    results.close()
    assert scheduler.methods == ["request", "collect_since", "collect_since", "collect_since", "cancel"]
    assert [taken for method, _, *taken in scheduler.calls if method == "collect_since"] == [[0], [1], [1]]


@pytest.mark.usefixtures("without_waiting")
def test_a_pool_requests_missing_results_from_a_restarted_scheduler():
    tasks = shards(3)
    scheduler = FakeScheduler([reply(1)], None, [reply(2)], [reply(0)])
    assert [task for task, _ in Pool(scheduler).results(tasks, 7)] == [tasks[1], tasks[2], tasks[0]]
    collect = "collect_since"
    assert scheduler.methods == ["request", collect, collect, "request", collect, collect, "cancel"]
    assert [taken for method, _, *taken in scheduler.calls if method == collect] == [[0], [1], [0], [1]]


@pytest.mark.usefixtures("without_waiting")
def test_a_pool_sends_the_keys_of_the_run_to_a_restarted_scheduler():
    scheduler = FakeScheduler([reply(0)], refusals=1)
    pool = Pool(scheduler, keys=KEYS, shared_folder=Path("shared"))
    assert len(list(pool.results(shards(1)))) == 1
    assert scheduler.methods == ["request", "resume", "request", "collect_since", "cancel"]
    assert scheduler.calls[1] == ("resume", KEYS, Path("shared"))


@pytest.mark.usefixtures("without_waiting")
def test_a_pool_raises_a_failure_and_cancels_the_rest():
    scheduler = FakeScheduler([reply(1), (0, TaskFailed("no")), reply(2)])
    with pytest.raises(TaskFailed, match="no"):
        list(Pool(scheduler).results(shards(3), 1))
    assert scheduler.methods == ["request", "collect_since", "cancel"]
