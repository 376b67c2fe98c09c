"""The scheduler gives every task exactly one outcome, a result or a reason, whatever happens to the workers."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpp_sweep.spec import tasks as cutting
from fpp_sweep.spec.errors import MachineError
from fpp_sweep.trial.results import TaskFailed, TaskStore
from fpp_sweep.workers import scheduler as scheduler_module
from fpp_sweep.workers.scheduler import LostError
from tests.kit.rows import RUNNING_MEAN, registered
from tests.kit.scheduler import (
    HANGS_AFTER,
    SHORT_TIMEOUT,
    USER_ERROR,
    WORK,
    Harness,
    die,
    fail_for_good,
    fail_here,
    hang,
    is_pretraining,
    let_others_run,
    once,
    only_for,
    outcome,
    shards,
    succeed,
    titles,
    titles_in,
    until,
)
from tests.kit.tasks import evaluation


def pretrain(**config):
    return evaluation(prompt="fpp", **config).pretrain


# ------------------------------------------------------------ one execution per task


async def test_every_task_gets_its_own_result(start):
    tasks = [*shards(6), pretrain(), *shards(2, dataset="pets", prompt="fpp")]
    assert titles_in(await start(wanted=3).results(tasks)) == titles(tasks)


async def test_simultaneous_requests_for_a_task_share_one_execution(start):
    harness = start(wanted=3)
    results_of_trials = await asyncio.gather(*(harness.results(shards(2), order) for order in range(1, 9)))
    assert [titles_in(results) for results in results_of_trials] == [titles(shards(2))] * 8
    assert len(harness.ran) == 2
    assert (harness.counts.done, harness.counts.cached) == (2, 14)
    assert harness.counts.images == 128


async def test_a_cached_result_needs_no_worker(start):
    tasks = [*shards(2, prompt="fpp"), pretrain()]
    await start().results(tasks)
    later = start(wanted=0)
    results = await later.results(tasks)
    assert titles_in(results) == titles(tasks)
    assert [(dict(result.seconds), result.worker_seconds) for result in results] == [({}, 0.0)] * 3
    assert (later.ran, later.counts.cached) == ([], 3)


async def test_all_shards_get_the_prompt_that_was_pretrained_once(start):
    harness = start(wanted=2)
    await harness.results(shards(3, prompt="fpp"))
    assert list(map(is_pretraining, harness.ran)) == [True, False, False, False]
    assert [titles_in(inputs) for inputs in harness.inputs] == [[], *[[pretrain().title]] * 3]


# ------------------------------------------------------------ losses


@pytest.mark.parametrize("behaviour", [die, hang])
async def test_a_lost_worker_costs_time_and_no_result(start, behaviour):
    harness = start(once(behaviour), timeout=SHORT_TIMEOUT)
    assert titles_in(await harness.results(shards(3))) == titles(shards(3))
    status = harness.status
    assert (status.counts.lost, status.counts.loads, len(harness.ran), status.counts.done) == (1, 2, 4, 3)
    first, second = harness.workers
    assert (first.lost.is_set(), second.lost.is_set()) == (True, False)
    assert [len(worker.ran) for worker in (first, second)] == [1, 3]
    assert harness.scheduler.workers == [second]


@pytest.mark.parametrize(
    ("behaviour", "reason"), [(die, "its worker died (killed)"), (hang, f"no result after {SHORT_TIMEOUT:g} s")]
)
@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_task_that_kills_its_worker_fails_after_its_last_attempt(start, behaviour, reason, attempts):
    """The reason names the dataset, the samples, and one of the workers that tried the task."""
    only_poison = only_for(lambda task: task.start == 64, behaviour)
    harness = start(only_poison, wanted=2, attempts=attempts, timeout=SHORT_TIMEOUT)
    poison = shards(2)[1]
    failure = await outcome(harness.results(shards(3)))
    tried = [worker.info.where for worker in harness.workers if poison in worker.ran]
    assert failure in {f"{poison.title}, {where}: {reason}; {attempts} of {attempts} attempts" for where in tried}
    assert await outcome(harness.results(shards(1), 2)) == titles(shards(1))  # other tasks are unaffected
    await until(lambda: harness.status.workers == 2)
    assert (harness.counts.lost, harness.counts.loads) == (attempts, attempts + 2)
    assert harness.ran.count(poison) == attempts


async def test_a_users_error_is_reported_unchanged_and_not_retried(start):
    harness = start(fail_for_good, attempts=5)
    with pytest.raises(TaskFailed) as failure:
        await harness.results(shards(1))
    assert (failure.value.reason, failure.value.details) == (USER_ERROR, "a traceback")
    status = harness.status
    assert (len(harness.ran), status.counts.lost, status.workers, status.counts.done) == (1, 0, 1, 0)


async def test_idle_workers_that_die_are_replaced_without_costing_an_attempt(start):
    harness = start(wanted=2, attempts=1)
    await until(lambda: len(harness.scheduler.workers) == 2)
    for worker in harness.workers:
        worker.kill()
    await until(lambda: harness.starts == 4)
    await harness.results([evaluation()])
    assert (harness.counts.lost, [worker.ran for worker in harness.workers[:2]]) == (2, [[], []])


@pytest.mark.parametrize(
    ("behaviour", "reason"), [(fail_for_good, USER_ERROR), (die, r"its worker died (killed); 2 of 2 at")]
)
async def test_a_failed_pretraining_fails_every_shard_that_waits_for_it(start, behaviour, reason):
    harness = start(only_for(is_pretraining, behaviour))
    requests = []
    for order, task in enumerate([*shards(3, prompt="fpp"), pretrain()]):
        requests.append(outcome(harness.results([task], order)))
    reasons = await asyncio.gather(*requests)
    assert len(set(reasons)) == 1
    assert reason in reasons[0]
    assert behaviour is fail_for_good or reasons[0].startswith("dtd, pretraining, seed 0, worker ")
    assert all(map(is_pretraining, harness.ran))
    assert (harness.status.queued, harness.scheduler._pending) == (0, {})


# ------------------------------------------------------------ failures that another worker might avoid


def faulty(*numbers):
    """Return a behaviour with which these workers fail every task with an error of their machine."""

    async def behave(worker, task):
        if worker.info.pid in numbers:
            return await fail_here(worker, task)
        return await succeed(worker, task)

    return behave


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_worker_with_a_machine_fault_is_replaced_and_its_task_succeeds_elsewhere(start, workers):
    harness = start(faulty(0), wanted=workers)
    await until(lambda: harness.status.workers == workers)
    assert titles_in(await harness.results(shards(4))) == titles(shards(4))
    status = harness.status
    assert (status.counts.lost, len(harness.ran), status.counts.done) == (1, 5, 4)
    assert (harness.workers[0].lost.is_set(), len(harness.workers[0].ran)) == (True, 1)
    await until(lambda: harness.counts.loads == workers + 1)


async def test_a_failure_on_two_workers_is_final_and_reports_the_first_cause(start):
    harness = start(only_for(lambda task: task.start == 64, fail_here), wanted=4, attempts=9)
    await until(lambda: harness.status.workers == 4)
    bad = shards(2)[1]
    reason = await outcome(harness.results([bad]))
    tried = [worker.info.where for worker in harness.workers if bad in worker.ran]
    assert len(tried) == 2
    assert reason in {f"{bad.title}, {where}: RuntimeError: could not create a primitive" for where in tried}
    await until(lambda: harness.status.workers == 4)
    assert (harness.ran, harness.counts.lost, harness.status.notes) == ([bad, bad], 2, ())


async def test_a_retry_goes_to_another_machine_rather_than_to_the_replacement(start):
    """If the machine's GPU is broken, the replacement would fail as well."""
    gate = asyncio.Event()

    async def behave(worker, task):
        if worker.slot == "broken":
            return await fail_here(worker, task)
        await gate.wait()
        return await succeed(worker, task)

    harness = start(behave, wanted=2, on_start=lambda number: {"slot": "good" if number == 1 else "broken"})
    await until(lambda: harness.status.workers == 2)
    request = harness.request(shards(2))
    await until(lambda: harness.counts.loads == 3)  # worker 0 has failed, and worker 2 may not take the retry
    await let_others_run()
    assert (harness.status.queued, harness.status.running, harness.workers[2].ran) == (1, 1, [])
    gate.set()
    assert await request == titles(shards(2))
    assert len(harness.ran) == 3


async def test_a_slot_where_every_task_fails_gets_no_tasks_while_other_slots_work(start):
    async def behave(worker, task):
        if worker.slot == "good" or harness.is_repaired:
            return await succeed(worker, task)
        return await fail_here(worker, task)

    harness = start(behave, on_start=lambda number: {"slot": "broken" if number else "good"}, wanted=2)
    harness.is_repaired = False
    await until(lambda: harness.status.workers == 2)
    for order in range(40):
        await harness.results(shards(2, seed=order), order)
        await until(lambda: harness.status.workers == 2)
    (note,) = harness.status.notes
    problem = "a machine or GPU gets no more tasks: 3 tasks in a row failed there and succeeded elsewhere"
    assert note.startswith(f"{problem}; the last failure: dtd, ")
    assert sum(len(worker.ran) for worker in harness.workers if worker.slot == "broken") == 3
    harness.is_repaired, harness.scheduler.wanted_workers = True, lambda: 0
    harness.workers[0].kill()
    assert titles_in(await harness.results(shards(2, seed=99), 99)) == titles(shards(2, seed=99))
    assert harness.status.notes == ()


# ------------------------------------------------------------ cancelled requests


async def test_the_first_failure_of_a_trial_cancels_its_other_tasks(start):
    async def behave(worker, task):
        if task.start == 0:
            return await fail_for_good(worker, task)
        await asyncio.sleep(50 * WORK)
        return await succeed(worker, task)

    harness = start(behave)
    assert await outcome(harness.results(shards(9))) == USER_ERROR
    await asyncio.sleep(150 * WORK)
    assert len(harness.ran) <= 2  # the worker may have started a second task before the failure was reported
    assert (harness.status.queued, harness.scheduler._pending) == (0, {})


async def test_a_task_that_another_trial_needs_is_not_cancelled(start):
    harness = start(only_for(lambda task: task.start == 0, fail_for_good))
    bad, good = harness.request([evaluation(stop=128), *shards(6)[2:]], 1), harness.request(shards(4)[2:], 2)
    assert (await bad, await good) == (USER_ERROR, titles(shards(4)[2:]))
    assert harness.scheduler._pending == {}


@pytest.mark.parametrize("moment", range(6))
async def test_a_trial_cancelled_during_pretraining_does_not_block_trials_that_share_its_shards(start, moment):
    """Trials get the shard whether they requested it together with the cancelled trial or request it later."""
    (shard,) = shards(1, prompt="fpp")
    harness = start(wanted=0)

    async def request_and_cancel(order, shard):
        request = harness.request([shard], order)
        for _ in range(moment):
            await asyncio.sleep(WORK / 4)
        request.cancel()
        return request

    sharing = harness.request([shard], 2)
    first = await request_and_cancel(1, shard)
    harness.scheduler.wanted_workers = lambda: 1
    assert await sharing == titles([shard])
    await asyncio.gather(first, return_exceptions=True)
    other = replace(shard, seed=5)
    await asyncio.gather(await request_and_cancel(3, other), return_exceptions=True)
    assert titles_in(await harness.results([other], 4)) == titles([other])
    assert harness.scheduler._pending == {}


async def test_cancelled_tasks_do_not_start(start, chain):
    harness = start(wanted=0)
    request = harness.request([*shards(3), *shards(2, prompt="fpp"), *chain])
    await until(lambda: harness.status.queued == 4)  # three shards, and the prompt that all the others need
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await until(lambda: not harness.scheduler._pending)
    assert harness.status.queued == 0
    harness.scheduler.wanted_workers = lambda: 1
    await harness.scheduler.first_worker()
    await let_others_run()
    assert harness.ran == []


async def test_a_running_task_finishes_after_its_trial_is_cancelled(start):
    harness = start()
    request = harness.request(shards(1))
    await until(lambda: harness.ran)
    request.cancel()
    assert titles_in(await harness.results(shards(1), 2)) == titles(shards(1))
    assert len(harness.ran) == 1


@pytest.mark.parametrize("joins", ["before", "after"])
async def test_the_work_on_a_task_is_charged_to_a_trial_that_waits_for_its_end(start, joins):
    """The trial that requested the task first leaves while a worker computes it, before or after another one joins."""
    gate = asyncio.Event()

    async def succeed_later(worker, task):
        await gate.wait()
        return await succeed(worker, task)

    harness = start(succeed_later)
    first = harness.request(shards(1), 1)
    await until(lambda: harness.ran)
    others = []
    if joins == "before":
        others = [asyncio.create_task(harness.results(shards(1), order)) for order in (2, 3)]
        await let_others_run()
    first.cancel()
    await let_others_run()
    if joins == "after":
        others = [asyncio.create_task(harness.results(shards(1), order)) for order in (2, 3)]
        await let_others_run()
    gate.set()
    (second,), (third,) = await asyncio.gather(*others)
    assert (second.worker_seconds, third.worker_seconds) == (1.5, 0.0)


# ------------------------------------------------------------ failures of everything


async def check_that_everything_fails(harness):
    """Check that waiting trials, a later one and a request for a worker get one reason; return it and the failure."""
    waiting = [harness.request(shards(3), 1), harness.request(shards(1, prompt="fpp"), 2)]
    first = await harness.scheduler.first_worker()
    reasons = {await waiting[0], await waiting[1], await harness.request(shards(1, seed=3), 3), first.reason}
    starts = harness.starts
    await let_others_run()
    assert harness.starts == starts, "workers are still being started"
    assert (harness.status.queued, harness.scheduler._pending) == (0, {})
    assert reasons == {harness.status.fatal}
    return harness.status.fatal, first


async def test_a_model_that_cannot_be_loaded_fails_everything_at_once(start):
    def on_start(number):
        raise TaskFailed("unknown model 'tinny'", "a traceback")

    harness = start(on_start=on_start)
    fatal, first = await check_that_everything_fails(harness)
    assert (fatal, first.details, harness.starts) == ("unknown model 'tinny'", "a traceback", 1)


async def test_a_model_that_cannot_be_loaded_on_a_later_machine_fails_nothing(start):
    def on_start(number):
        if number:
            raise TaskFailed("node-b: /data/ViT.pt: does not exist", "a traceback")
        return {}

    harness = start(on_start=on_start)
    await harness.scheduler.first_worker()
    harness.scheduler.wanted_workers = lambda: 2
    await until(lambda: harness.status.notes)
    (note,) = harness.status.notes
    assert note == "a worker does not start while others work: node-b: /data/ViT.pt: does not exist"
    assert titles_in(await harness.results(shards(2))) == titles(shards(2))
    assert harness.status.fatal is None
    harness.workers[0].kill()
    await until(lambda: harness.status.fatal)
    assert harness.status.fatal == "workers do not start: node-b: /data/ViT.pt: does not exist"


@pytest.mark.parametrize(
    ("error", "reason"),
    [(LostError("no node has room"), "no node has room"), (OSError("no such environment"), "OSError: no such env")],
)
async def test_three_failed_starts_in_a_row_fail_everything(start, error, reason):
    def on_start(number):
        raise error

    harness = start(on_start=on_start)
    fatal, _ = await check_that_everything_fails(harness)
    assert fatal.startswith(f"workers do not start: {reason}")
    assert harness.starts == 3


async def test_two_failed_starts_in_a_row_are_tolerated(start):
    def on_start(number):
        if number % 3 < 2:
            raise LostError("out of memory")
        return {}

    harness = start(only_for(lambda task: task.dataset == "pets", die), on_start=on_start)
    await outcome(harness.results([evaluation(dataset="pets")]))  # the task kills two workers
    assert titles_in(await harness.results(shards(2), 2)) == titles(shards(2))
    assert (harness.status.fatal, harness.counts.loads, harness.starts) == (None, 3, 9)


async def test_failed_starts_while_another_worker_works_are_noted_until_one_succeeds(start):
    harness = start()
    await harness.scheduler.first_worker()

    def on_start(number):
        if number < 5:
            raise LostError("their node was terminated")
        return {}

    harness.on_start, harness.scheduler.wanted_workers = on_start, lambda: 2
    await until(lambda: harness.status.notes)
    assert harness.status.notes == ("a worker does not start while others work: their node was terminated",)
    await until(lambda: harness.status.workers == 2)
    assert (harness.status.notes, harness.status.fatal, harness.counts.lost) == ((), None, 4)


async def test_a_note_lists_each_kind_of_device_once(start):
    kinds = ("cpu", "NVIDIA H100", "cpu")
    harness = start(wanted=1, on_start=lambda number: {"device_kind": kinds[number]})
    await until(lambda: harness.status.workers == 1)
    assert harness.status.notes == ()
    harness.scheduler.wanted_workers = lambda: 3
    await until(lambda: harness.status.workers == 3)
    devices = "workers compute on several kinds of devices (cpu, NVIDIA H100)"
    assert harness.status.notes == (f"{devices}, whose results differ in last bits",)


def differing_machine(**changes):
    """Return a start of workers of which all but the first differ."""
    return lambda number: {"node": "gpu7", **changes} if number else {"software": ("code 1", "numpy 2.4.6")}


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"digest": "others", "software": ("code 1", "numpy 2.4.6")}, "weights of m"),
        ({"software": ("code 2", "numpy 2.4.5")}, "code 2, numpy 2.4.5"),
    ],
)
async def test_a_machine_with_other_weights_or_software_computes_nothing(start, changes, difference):
    harness = start(on_start=differing_machine(**changes), wanted=2)
    await until(lambda: harness.status.notes)
    problem = f"gpu7: differs from the first worker ({difference})"
    remedy = "bring every machine to the same commit, versions and files"
    assert harness.status.notes == (f"a worker does not start while others work: {problem}; {remedy}",)
    assert titles_in(await harness.results(shards(2))) == titles(shards(2))
    assert (harness.status.fatal, harness.counts.loads, harness.status.workers) == (None, 1, 1)
    assert all(worker.lost.is_set() for worker in harness.workers[1:])
    harness.workers[0].kill()
    await until(lambda: harness.status.fatal)
    assert harness.status.fatal == f"workers do not start: {problem}; {remedy}"


async def test_an_unknown_number_of_wanted_workers_fails_everything(start):
    def wanted():
        raise ConnectionError("the head node is gone")

    fatal, _ = await check_that_everything_fails(start(wanted=wanted))
    assert fatal.endswith("ConnectionError: the head node is gone")


# ------------------------------------------------------------ more and fewer workers


async def test_workers_start_when_more_are_wanted(start):
    harness = start(hang)
    harness.request(shards(3))
    await until(lambda: harness.status.running == 1)
    await until(lambda: harness.status.queued == 2)
    harness.scheduler.wanted_workers = lambda: 3
    await until(lambda: harness.status.running == 3)
    assert (harness.status.workers, harness.counts.loads) == (3, 3)


# ------------------------------------------------------------ disks


class BrokenStore(TaskStore):
    """A store whose disk is full."""

    def __init__(self, root, **errors):
        super().__init__(root)
        self.errors = errors

    def put(self, key, result):
        if "put" in self.errors:
            raise self.errors["put"]
        super().put(key, result)


DISK_FULL = OSError(28, "No space left on device")


async def test_a_full_disk_is_a_machine_error_and_keeps_the_worker(start, tmp_path):
    store = BrokenStore(tmp_path, put=DISK_FULL)
    harness = start(store=store)
    with pytest.raises(MachineError, match=r"^No space left on device; make room, then go on with --resume$"):
        await harness.results(shards(1))
    store.errors.clear()
    assert titles_in(await harness.results(shards(1), 2)) == titles(shards(1))
    status = harness.status
    assert (status.counts.loads, status.counts.lost, len(harness.ran), status.counts.done) == (1, 0, 2, 1)


# ------------------------------------------------------------ costs


def charges(results):
    """Return the seconds by stage, and the seconds of worker time, of some results."""
    total = {}
    for result in results:
        for stage, value in result.seconds.items():
            total[stage] = total.get(stage, 0.0) + value
    return total, sum(result.worker_seconds for result in results)


async def test_the_first_trial_that_requests_a_task_is_charged_once(start, chain):
    """This includes the prompt, which the trial's shards request before the trial does."""
    tasks, no_charge = [*chain[:3], pretrain()], ({}, 0.0)
    harness = start(wanted=2)
    together = await asyncio.gather(harness.results(tasks, 1), harness.results(tasks, 2))
    later = await harness.results(tasks, 3)
    assert charges(together[0]) == ({"adapt": 3.0, "pretrain": 2.0}, 7.0)
    assert charges(together[1]) == charges(later) == no_charge


# ------------------------------------------------------------ random failures


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_request_ends_whatever_happens(tmp_path_factory, data):
    """In random scenarios, trials overlap, fail and are cancelled; workers die, fail and do not start."""
    behaviours = data.draw(st.lists(st.sampled_from([succeed] * 6 + [die, fail_for_good, fail_here]), max_size=12))
    failed_starts = set(data.draw(st.lists(st.integers(0, 6), max_size=3)))
    trial = st.tuples(
        st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True),  # shards
        st.sampled_from([{}, {"prompt": "fpp"}, {"method": "running_mean"}]),
        st.booleans(),  # true if the trial is cancelled
        st.integers(0, 3),  # the time before the cancellation, in durations of a task
    )
    trials = data.draw(st.lists(trial, min_size=1, max_size=5))
    running = []

    async def behave(worker, task):
        stateful = task.config.method == "running_mean"
        assert not (stateful and running), "two shards of a chain at once"
        if stateful:
            running.append(task)
        behaviour = behaviours.pop() if behaviours else succeed
        try:
            return await behaviour(worker, task)
        finally:
            if stateful:
                running.clear()

    def on_start(number):
        if number in failed_starts:
            raise LostError("no")
        return {}

    async def scenario():
        harness = Harness(behaviour=behave, on_start=on_start, wanted=2).begin(tmp_path_factory.mktemp("tasks"))
        tasks_of_trials, requests = [], []
        for order, (numbers, config, _, _) in enumerate(trials):
            tasks_of_trials.append([shards(6, **config)[number] for number in numbers])
            requests.append(harness.request(tasks_of_trials[-1], order))
        for request, (_, _, is_cancelled, pause) in zip(requests, trials, strict=True):
            await asyncio.sleep(pause * WORK)
            if is_cancelled:
                request.cancel()
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        for result, tasks, (_, _, is_cancelled, _) in zip(outcomes, tasks_of_trials, trials, strict=True):
            was_cancelled = is_cancelled and isinstance(result, asyncio.CancelledError)
            assert result == titles(tasks) or isinstance(result, str) or was_cancelled, result
        await until(lambda: not harness.scheduler._pending and not harness.status.queued)

    async def limited():
        async with asyncio.timeout(HANGS_AFTER):
            await scenario()

    with registered(RUNNING_MEAN), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "SHARD", 64)
        patch.setattr(scheduler_module, "START_INTERVAL", 0.005)
        patch.setattr(scheduler_module, "FAILED_START_DELAY", 0.005)
        asyncio.run(limited())
