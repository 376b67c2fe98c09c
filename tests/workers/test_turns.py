"""Who does what, and in which turn: by trial, as asked for; by adapters and features; streams in their order."""

import asyncio
import threading

import pytest

from fpp_sweep.trial.store import TaskStore
from tests.names import OTPT
from tests.trial.made import KEYS, evaluation
from tests.waiting import LONG
from tests.workers.crew import DECLINED, SOON, batches, declines, dies, idle, titles, told, unless, until, works


async def turns(crew, *asked):
    """What one worker does and in which turn, when trials have asked for tasks."""
    gate = asyncio.Event()

    async def waits(worker, task):
        await gate.wait()
        return await works(worker, task)

    crew.does, crew.keeper.timeout = waits, SOON
    waiting = [crew.ask([evaluation(seed=9)], 0)]
    await until(lambda: crew.ran)
    del crew.ran[:]
    for order, tasks in asked:
        waiting.append(crew.ask(tasks, order))
        await idle()
    gate.set()
    await asyncio.gather(*waiting)
    return [(task.dataset, getattr(task, "start", "prompt")) for task in crew.ran]


async def test_the_oldest_trial_comes_first_and_in_it_what_was_asked_for_first(keep):
    small, large, other = evaluation(), evaluation(start=64, stop=320), evaluation(dataset="pets")
    late = evaluation(start=320, stop=640)
    found = await turns(keep(), (7, [late]), (3, [other, large, small]))
    assert found == [("pets", 0), ("dtd", 64), ("dtd", 0), ("dtd", 320)]


@pytest.mark.parametrize("older", [False, True])
async def test_work_that_an_older_trial_wants_too_takes_its_turn(keep, older):
    shared, first = evaluation(start=320, stop=640), evaluation(stop=320, method=OTPT)
    found = await turns(keep(), (9, [first, shared]), *[(2, [shared])] * older)
    assert found == ([("dtd", 320), ("dtd", 0)] if older else [("dtd", 0), ("dtd", 320)])


async def test_a_prompt_is_made_in_the_turn_of_the_shard_that_needs_it(keep):
    first, needing, last = evaluation(stop=320), evaluation(prompt="fpp"), evaluation(start=320, stop=640)
    found = await turns(keep(), (3, [first, needing, last]))
    assert found[:2] == [("dtd", 0), ("dtd", "prompt")]


@pytest.mark.parametrize("nodes", [("left", "right"), ("same", "same")])
async def test_a_machine_does_first_what_it_has_read_before_unless_all_have(keep, nodes):
    took, gates = {}, [asyncio.Event(), asyncio.Event()]

    async def does(worker, task):
        if task.dataset == "pets":
            await gates[worker.facts.pid].wait()
        else:
            took.setdefault(task.start, worker.facts.pid)
            await until(lambda: len(took) == 2)  # so that each worker has had one
        return await works(worker, task)

    crew = keep(does, workers=2, timeout=SOON, starts=lambda number: {"node": nodes[number]})
    await crew.results(batches(2))
    busy = crew.ask(batches(2, dataset="pets"))
    await until(lambda: crew.status.running == 2)
    read = next(start for start, pid in took.items() if pid == 0)
    asked = crew.ask([evaluation(start=at, stop=at + 64, **{"adapt.steps": 2}) for at in (64 - read, read)], 2)
    await until(lambda: crew.status.queued == 2)
    gates[0].set()
    await asked
    gates[1].set()
    await busy
    turn = [task.start for task in crew.hired[0].ran[-2:]]
    assert turn == ([read, 64 - read] if nodes == ("left", "right") else [64 - read, read])


# ------------------------------------------------------------ adapters


def in_step(count):
    """Workers that begin and end together."""
    barrier = asyncio.Barrier(count)

    async def does(worker, task):
        await barrier.wait()
        return await works(worker, task)

    return does


async def test_shards_are_left_to_the_worker_that_holds_their_adapter(keep):
    crew = keep(in_step(2), workers=2, timeout=SOON)
    await until(lambda: crew.status.workers == 2)
    await crew.results([*batches(4), *batches(4, dataset="pets")])
    assert sorted(str({task.dataset for task in worker.ran}) for worker in crew.hired) == ["{'dtd'}", "{'pets'}"]
    assert len(crew.built) == 2


async def test_nobody_is_idle_for_the_sake_of_an_adapter_while_its_holder_works(keep):
    crew = keep(in_step(2), workers=2, timeout=SOON)  # one alone would wait for ever
    await crew.results(batches(4))
    assert [len(worker.ran) for worker in crew.hired] == [2, 2]
    assert len(crew.built) == 2


async def test_an_older_trial_comes_before_an_adapter(keep):
    gates = {"dtd": asyncio.Event(), "pets": asyncio.Event()}

    async def waits(worker, task):
        await gates[task.dataset].wait() if task.seed else None
        return await works(worker, task)

    crew = keep(waits, workers=2, timeout=SOON)
    await until(lambda: crew.status.workers == 2)
    first = [evaluation(dataset=dataset, seed=seed) for seed in (0, 1) for dataset in gates]
    crew.ask(first, 1)
    await until(lambda: set(first) <= set(crew.ran))  # each worker has one of seed 1 now, and waits
    pets = next(worker for worker in crew.hired if worker.ran[-1].dataset == "pets")
    crew.ask(batches(2, dataset="pets", seed=1)[1:], 3)
    crew.ask(batches(2, seed=1)[1:], 2)
    await until(lambda: crew.status.queued == 2)
    gates["pets"].set()
    await until(lambda: len(pets.ran) == 3)
    assert pets.ran[-1].dataset == "dtd"


async def test_an_adapter_that_a_worker_has_let_go_is_nobodys(keep):
    async def forgets(worker, task):
        if task.dataset == "dtd":
            worker.holds.clear()
        return await works(worker, task)

    crew = keep(forgets)
    for dataset, held in (("dtd", set()), ("pets", {KEYS.of_adapter(evaluation(dataset="pets"))})):
        await crew.results([evaluation(dataset=dataset)])
        assert list(crew.keeper._roster.adapters.values()) == [held]


# ------------------------------------------------------------ streams whose order counts


async def test_a_chain_is_done_in_its_order_each_from_the_one_before_and_by_one_of_many_idle_workers(keep, chain):
    crew = keep(workers=4)
    await until(lambda: crew.status.workers == 4)
    assert told(await crew.results(chain[::-1])) == titles(chain[::-1])
    assert crew.ran == [chain[0].pretrain, *chain]
    assert [told(needs) for needs in crew.needs] == [[], *(titles(shard.needs) for shard in chain)]
    assert len({task for worker in crew.hired for task in worker.ran[-1:] if task in chain}) == 1
    assert len(crew.built) == 1


async def test_a_chain_goes_on_where_its_worker_was_lost(keep, chain):
    lost = []

    async def does(worker, task):
        if task in chain[3:5] and task not in lost:
            lost.append(task)
            return await dies(worker, task)
        return await works(worker, task)

    crew = keep(does, workers=2)
    assert told(await crew.results(chain)) == titles(chain)
    assert crew.ran == [chain[0].pretrain, *chain[:4], chain[3], chain[4], *chain[4:]]


async def test_a_chain_goes_on_from_what_is_on_disk(keep, chain):
    await keep().results(chain[:4])
    crew = keep()
    assert told(await crew.results([chain[-1]])) == titles(chain[-1:])
    assert crew.ran == chain[4:]


async def test_a_chain_that_fails_fails_from_there_on(keep, chain):
    crew = keep(unless(lambda task: task == chain[2], declines))
    reasons = await asyncio.gather(*(crew.ask([shard], order) for order, shard in enumerate(chain)))
    assert reasons == [*([title] for title in titles(chain[:2])), *[DECLINED] * 8]
    assert (crew.ran[-1], crew.status.queued, crew.keeper._jobs) == (chain[2], 0, {})


class SlowFirst(TaskStore):
    """Finds nothing, and says so of the first task that is looked for last."""

    def __init__(self, root, tasks):
        super().__init__(root)
        self.first, *others = (KEYS.of(task) for task in tasks)
        self.left, self.lock = set(others), threading.Condition()

    def get(self, key):
        with self.lock:
            if key == self.first:
                assert self.lock.wait_for(lambda: not self.left, timeout=LONG)
            self.left.discard(key)
            self.lock.notify_all()


async def test_tasks_are_begun_in_turn_however_long_it_takes_to_look_for_their_results(keep, tmp_path):
    tasks = batches(3)
    crew = keep(store=SlowFirst(tmp_path, tasks))
    await until(lambda: crew.status.workers)
    await crew.results(tasks)
    assert crew.ran == tasks
