"""Assignment of tasks to workers and their order: by trial and arrival, by adapters and features, and in streams."""

import asyncio
import threading

import pytest

from fpp_sweep.trial.results import TaskStore
from tests.kit.names import OTPT
from tests.kit.scheduler import (
    USER_ERROR,
    die,
    fail_for_good,
    let_others_run,
    only_for,
    shards,
    succeed,
    titles,
    titles_in,
    until,
)
from tests.kit.tasks import KEYS, evaluation
from tests.kit.waiting import LONG


async def execution_order(harness, *requests):
    """Return the dataset and first sample of the tasks that one worker computes, in the order of execution.

    A request is a pair of a trial's order and its tasks. The worker is busy until all requests are queued.
    """
    gate = asyncio.Event()

    async def wait_for_gate(worker, task):
        await gate.wait()
        return await succeed(worker, task)

    harness.behaviour = wait_for_gate
    waiting = [harness.request([evaluation(seed=9)], 0)]
    await until(lambda: harness.ran)
    del harness.ran[:]
    for order, tasks in requests:
        waiting.append(harness.request(tasks, order))
        await let_others_run()
    gate.set()
    await asyncio.gather(*waiting)
    return [(task.dataset, getattr(task, "start", "prompt")) for task in harness.ran]


async def test_tasks_run_by_trial_and_then_by_arrival(start):
    small, large, other = evaluation(), evaluation(start=64, stop=320), evaluation(dataset="pets")
    late = evaluation(start=320, stop=640)
    ran = await execution_order(start(), (7, [late]), (3, [other, large, small]))
    assert ran == [("pets", 0), ("dtd", 64), ("dtd", 0), ("dtd", 320)]


@pytest.mark.parametrize("older", [False, True])
async def test_a_task_shared_with_an_older_trial_runs_in_the_order_of_that_trial(start, older):
    shared, first = evaluation(start=320, stop=640), evaluation(stop=320, method=OTPT)
    requests = [(9, [first, shared])]
    expected = [("dtd", 0), ("dtd", 320)]
    if older:
        requests.append((2, [shared]))
        expected.reverse()
    assert await execution_order(start(), *requests) == expected


async def test_a_pretraining_runs_in_the_order_of_the_shard_that_needs_it(start):
    first, needing, last = evaluation(stop=320), evaluation(prompt="fpp"), evaluation(start=320, stop=640)
    ran = await execution_order(start(), (3, [first, needing, last]))
    assert ran[:2] == [("dtd", 0), ("dtd", "prompt")]


@pytest.mark.parametrize("nodes", [("left", "right"), ("same", "same")])
async def test_a_machine_prefers_tasks_whose_features_only_it_has_read(start, nodes):
    pid_by_start, gates = {}, [asyncio.Event(), asyncio.Event()]

    async def behave(worker, task):
        if task.dataset == "pets":
            await gates[worker.info.pid].wait()
        else:
            pid_by_start.setdefault(task.start, worker.info.pid)
            await until(lambda: len(pid_by_start) == 2)  # waits, so that each worker gets one task
        return await succeed(worker, task)

    harness = start(behave, wanted=2, on_start=lambda number: {"node": nodes[number]})
    await harness.results(shards(2))
    busy = harness.request(shards(2, dataset="pets"))
    await until(lambda: harness.status.running == 2)
    (read,) = (first for first, pid in pid_by_start.items() if pid == 0)  # read by the first worker
    unread = 64 - read
    tasks = [evaluation(start=first, stop=first + 64, **{"adapt.steps": 2}) for first in (unread, read)]
    request = harness.request(tasks, 2)
    await until(lambda: harness.status.queued == 2)
    gates[0].set()
    await request
    gates[1].set()
    await busy
    expected = [read, unread] if nodes == ("left", "right") else [unread, read]
    assert [task.start for task in harness.workers[0].ran[-2:]] == expected


# ------------------------------------------------------------ adapters


def in_lockstep(count):
    """Return a behaviour with which `count` workers start their tasks together."""
    barrier = asyncio.Barrier(count)

    async def behave(worker, task):
        await barrier.wait()
        return await succeed(worker, task)

    return behave


async def test_shards_go_to_the_worker_that_holds_their_adapter(start):
    harness = start(in_lockstep(2), wanted=2)
    await until(lambda: harness.status.workers == 2)
    await harness.results([*shards(4), *shards(4, dataset="pets")])
    assert sorted(str({task.dataset for task in worker.ran}) for worker in harness.workers) == ["{'dtd'}", "{'pets'}"]
    assert len(harness.built_adapters) == 2


async def test_a_worker_stays_with_its_adapter_while_tasks_that_need_it_came_first(start):
    ran = await execution_order(start(), (1, [*shards(3), evaluation(dataset="pets")]))
    assert ran == [("dtd", 0), ("dtd", 64), ("dtd", 128), ("pets", 0)]


async def test_a_worker_takes_another_workers_shards_rather_than_being_idle(start):
    harness = start(in_lockstep(2), wanted=2)  # a single worker would wait for ever
    await harness.results(shards(4))
    assert [len(worker.ran) for worker in harness.workers] == [2, 2]
    assert len(harness.built_adapters) == 2


# ------------------------------------------------------------ streams of stateful methods


async def test_a_chain_of_shards_runs_in_order_on_one_of_several_idle_workers(start, chain):
    harness = start(wanted=4)
    await until(lambda: harness.status.workers == 4)
    assert titles_in(await harness.results(chain[::-1])) == titles(chain[::-1])
    assert harness.ran == [chain[0].pretrain, *chain]
    assert [titles_in(inputs) for inputs in harness.inputs] == [[], *(titles(shard.needs) for shard in chain)]
    assert len({task for worker in harness.workers for task in worker.ran[-1:] if task in chain}) == 1
    assert len(harness.built_adapters) == 1


async def test_a_chain_continues_after_its_worker_is_lost(start, chain):
    lost = []

    async def behave(worker, task):
        if task in chain[3:5] and task not in lost:
            lost.append(task)
            return await die(worker, task)
        return await succeed(worker, task)

    harness = start(behave, wanted=2)
    assert titles_in(await harness.results(chain)) == titles(chain)
    assert harness.ran == [chain[0].pretrain, *chain[:4], chain[3], chain[4], *chain[4:]]


async def test_a_chain_continues_from_cached_shards(start, chain):
    await start().results(chain[:4])
    harness = start()
    assert titles_in(await harness.results([chain[-1]])) == titles(chain[-1:])
    assert harness.ran == chain[4:]


async def test_a_failed_shard_fails_the_rest_of_its_chain(start, chain):
    harness = start(only_for(lambda task: task == chain[2], fail_for_good))
    reasons = await asyncio.gather(*(harness.request([shard], order) for order, shard in enumerate(chain)))
    assert reasons == [*([title] for title in titles(chain[:2])), *[USER_ERROR] * 8]
    assert (harness.ran[-1], harness.status.queued, harness.scheduler._pending) == (chain[2], 0, {})


class SlowLookup(TaskStore):
    """An empty store in which the lookup of one task lasts until `may_end` is set."""

    def __init__(self, root, slow_task):
        super().__init__(root)
        self.slow_key = KEYS.of(slow_task)
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def get(self, key):
        if key == self.slow_key:
            self.has_begun.set()
            assert self.may_end.wait(LONG)


async def test_a_later_trial_does_not_start_while_the_prompt_of_an_earlier_one_is_looked_up(start, tmp_path):
    of_first, of_second = shards(1, prompt="fpp"), shards(3)[1:]
    store = SlowLookup(tmp_path, of_first[0].pretrain)
    harness = start(store=store)
    await until(lambda: harness.status.workers)
    requests = [harness.request(of_first, 1), harness.request(of_second, 2)]
    await until(store.has_begun.is_set)
    await let_others_run()
    assert harness.ran == []
    store.may_end.set()
    await asyncio.gather(*requests)
    assert harness.ran[0] == of_first[0].pretrain
