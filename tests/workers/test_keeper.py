"""Every task ends, once, with a result or a reason, whatever becomes of those who work on it."""

import asyncio
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpp_sweep.spec import tasks as cutting
from fpp_sweep.spec.errors import MachineError
from fpp_sweep.trial.results import TaskFailed
from fpp_sweep.trial.store import TaskStore
from fpp_sweep.workers import scheduler as module
from fpp_sweep.workers.scheduler import LostError
from tests.toys import RUNNING_MEAN, registered
from tests.trial.made import evaluation
from tests.workers.crew import (
    DECLINED,
    SOON,
    TIMEOUT,
    WORK,
    Crew,
    batches,
    declines,
    dies,
    fails,
    hangs,
    idle,
    is_pretraining,
    once,
    outcome,
    titles,
    told,
    unless,
    until,
    works,
)


def pretrain(**config):
    return evaluation(prompt="fpp", **config).pretrain


# ------------------------------------------------------------ each once


async def test_every_task_gets_its_own_result(keep):
    tasks = [*batches(6), pretrain(), *batches(2, dataset="pets", prompt="fpp")]
    assert told(await keep(workers=3).results(tasks)) == titles(tasks)


async def test_who_asks_for_the_same_at_once_gets_the_same_work(keep):
    crew = keep(workers=3)
    found = await asyncio.gather(*(crew.results(batches(2), order) for order in range(1, 9)))
    assert [told(each) for each in found] == [titles(batches(2))] * 8
    assert len(crew.ran) == 2
    assert (crew.status.executions, crew.status.done, crew.status.at_hand) == (2, 2, 14)
    assert crew.status.images == 128


async def test_what_is_on_disk_needs_no_work_and_no_worker(keep):
    tasks = [*batches(2, prompt="fpp"), pretrain()]
    await keep().results(tasks)
    later = keep(workers=0)
    found = await later.results(tasks)
    assert told(found) == titles(tasks)
    assert [(dict(result.seconds), result.held) for result in found] == [({}, 0.0)] * 3
    assert (later.status.executions, later.status.at_hand, later.status.held) == (0, 3, 0.0)


async def test_a_damaged_result_on_disk_is_worked_on_again(keep, tmp_path):
    crew = keep()
    await crew.results(batches(1))
    (path,) = (each for each in tmp_path.rglob("*") if each.is_file())
    path.write_bytes(path.read_bytes()[:-1])
    assert told(await crew.results(batches(1), 2)) == titles(batches(1))
    assert crew.status.executions == 2


async def test_shards_start_from_the_prompt_that_is_made_once_for_all_of_them(keep):
    crew = keep(workers=2)
    await crew.results(batches(3, prompt="fpp"))
    assert list(map(is_pretraining, crew.ran)) == [True, False, False, False]
    assert [told(needs) for needs in crew.needs] == [[], *[[pretrain().title]] * 3]


# ------------------------------------------------------------ losses


@pytest.mark.parametrize("otherwise", [dies, hangs])
async def test_a_lost_worker_costs_time_and_no_result(keep, otherwise):
    crew = keep(once(otherwise))
    assert told(await crew.results(batches(3))) == titles(batches(3))
    status = crew.status
    assert (status.lost, status.loads, status.executions, status.done) == (1, 2, 4, 3)
    first, second = crew.hired
    assert (first.dead.is_set(), second.dead.is_set()) == (True, False)
    assert [len(worker.ran) for worker in (first, second)] == [1, 3]
    assert (status.workers, status.pids) == (1, (second.facts.pid,))
    assert crew.keeper._roster.adapters.keys() == crew.keeper.workers.keys()


@pytest.mark.parametrize(
    ("otherwise", "reason"), [(dies, "its worker died (killed)"), (hangs, f"no result after {TIMEOUT:g} s")]
)
@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_poisonous_task_takes_as_many_workers_as_it_has_attempts(keep, otherwise, reason, attempts):
    """It is told with dataset, samples, and a worker that tried."""
    crew = keep(unless(lambda task: task.start == 64, otherwise), workers=2, attempts=attempts)
    poison = batches(2)[1]
    found = await outcome(crew.results(batches(3)))
    tried = [worker.facts.where for worker in crew.hired if poison in worker.ran]
    assert found in {f"{poison.title}, {where}: {reason}; {attempts} of {attempts} attempts" for where in tried}
    assert await outcome(crew.results(batches(1), 2)) == titles(batches(1))  # others live on
    await until(lambda: crew.status.workers == 2)
    assert (crew.status.lost, crew.status.loads) == (attempts, attempts + 2)
    assert crew.ran.count(poison) == attempts


async def test_a_failure_is_told_as_it_is_and_not_tried_again(keep):
    crew = keep(declines, attempts=5)
    with pytest.raises(TaskFailed) as failure:
        await crew.results(batches(1))
    assert (failure.value.reason, failure.value.details) == (DECLINED, "a traceback")
    status = crew.status
    assert (status.executions, status.lost, status.workers, status.done) == (1, 0, 1, 0)


async def test_a_failure_is_not_remembered(keep):
    crew = keep(once(declines))
    found = [await outcome(crew.results(batches(1), order)) for order in (1, 2)]
    assert found == [DECLINED, titles(batches(1))]


async def test_a_worker_that_raises_what_nobody_expects_is_lost_and_nobody_waits_for_it(keep):
    async def strange(worker, task):
        raise RuntimeError("the object store is gone")

    crew = keep(strange)
    reason = await outcome(crew.results(batches(1)))
    assert reason.endswith("its worker died (RuntimeError: the object store is gone); 2 of 2 attempts")
    await until(lambda: crew.status.lost == 2)


async def test_workers_that_die_with_nothing_to_do_are_replaced_and_cost_no_attempt(keep):
    crew = keep(workers=2, attempts=1)
    await until(lambda: len(crew.keeper.workers) == 2)
    for worker in crew.hired:
        worker.kill()
    await until(lambda: crew.started == 4)
    await crew.results([evaluation()])
    assert (crew.status.lost, [worker.ran for worker in crew.hired[:2]]) == (2, [[], []])


@pytest.mark.parametrize("ticks", range(-10, 10))
async def test_a_task_that_comes_in_the_moment_an_idle_worker_dies_goes_to_the_other(keep, monkeypatch, ticks):
    """Also if the dead one held its adapter, and was to get it."""

    async def at_once(function, *arguments):
        return function(*arguments)

    crew = keep(workers=2)
    await until(lambda: len(crew.keeper._roster.idle) == 2)
    await crew.results(batches(1))
    await until(lambda: len(crew.keeper._roster.idle) == 2)
    crew.keeper.wanted = lambda: 0  # nobody is hired, who would find the task
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    holder = next(worker for worker in crew.hired if worker.ran)
    moments = [lambda: crew.ask(batches(2)[1:], 2), holder.kill]
    if ticks > 0:
        moments.reverse()
    asked = moments[0]()
    for _ in range(abs(ticks)):
        await asyncio.sleep(0)
    asked = moments[1]() or asked
    assert await asked == titles(batches(2)[1:])
    assert crew.status.queued == 0


@pytest.mark.parametrize(
    ("otherwise", "reason"), [(declines, DECLINED), (dies, r"its worker died (killed); 2 of 2 at")]
)
async def test_a_pretraining_that_fails_fails_every_shard_that_waits_for_it(keep, otherwise, reason):
    crew = keep(unless(is_pretraining, otherwise))
    asked = [[shard] for shard in batches(3, prompt="fpp")] + [[pretrain()]]
    reasons = await asyncio.gather(*(outcome(crew.results(tasks, order)) for order, tasks in enumerate(asked)))
    assert len(set(reasons)) == 1
    assert reason in reasons[0]
    assert otherwise is declines or reasons[0].startswith("dtd, pretraining, seed 0, worker ")
    assert all(map(is_pretraining, crew.ran))
    assert (crew.status.queued, crew.keeper._jobs) == (0, {})


# ------------------------------------------------------------ failures that another worker might not have


def sick(*numbers):
    """These workers fail whatever they are given."""

    async def does(worker, task):
        return await (fails if worker.facts.pid in numbers else works)(worker, task)

    return does


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_sick_worker_is_replaced_and_fails_no_task(keep, workers):
    crew = keep(sick(0), workers=workers)
    await until(lambda: crew.status.workers == workers)
    assert told(await crew.results(batches(4))) == titles(batches(4))
    status = crew.status
    assert (status.lost, status.executions, status.done) == (1, 5, 4)
    assert (crew.hired[0].dead.is_set(), len(crew.hired[0].ran)) == (True, 1)
    await until(lambda: crew.status.loads == workers + 1)


async def test_what_fails_everywhere_takes_two_workers_and_tells_the_first_cause(keep):
    crew = keep(unless(lambda task: task.start == 64, fails), workers=4, attempts=9)
    await until(lambda: crew.status.workers == 4)
    bad = batches(2)[1]
    reason = await outcome(crew.results([bad]))
    tried = [worker.facts.where for worker in crew.hired if bad in worker.ran]
    assert len(tried) == 2
    assert reason in {f"{bad.title}, {where}: RuntimeError: could not create a primitive" for where in tried}
    await until(lambda: crew.status.workers == 4)
    assert (crew.ran, crew.status.lost, crew.status.notes) == ([bad, bad], 2, ())


@pytest.mark.parametrize(("second", "told_of"), [(fails, "worker 0"), (declines, "not this one")])
async def test_a_second_failure_is_told_where_it_is_for_good(keep, second, told_of):
    async def does(worker, task):
        return await (second if worker.facts.pid else fails)(worker, task)

    crew = keep(does)
    assert told_of in await outcome(crew.results(batches(1)))
    assert len(crew.ran) == 2


async def test_one_attempt_is_one_attempt(keep):
    crew = keep(sick(0), attempts=1)
    assert "could not create a primitive" in await outcome(crew.results(batches(1)))
    assert len(crew.ran) == 1


async def test_a_task_that_failed_is_for_those_who_were_there_rather_than_for_the_replacement(keep):
    """As on a machine one of whose GPUs is broken: what replaces the worker fails as well."""
    gate = asyncio.Event()

    async def does(worker, task):
        if worker.facts.pid != 1:
            return await fails(worker, task)
        await gate.wait()
        return await works(worker, task)

    crew = keep(does, workers=2, timeout=SOON)
    await until(lambda: crew.status.workers == 2)
    crew.hired[0].dead.set()
    await until(lambda: crew.status.loads == 3)
    asked = crew.ask(batches(2))
    await until(lambda: crew.status.loads == 4)  # number 2 has failed, and number 3 has nothing that it may do
    await idle()
    assert (crew.status.queued, crew.status.running, crew.hired[3].ran) == (1, 1, [])
    gate.set()
    assert await asked == titles(batches(2))
    assert len(crew.ran) == 3


async def test_a_place_where_everything_fails_is_left_out_while_others_do_well_and_no_longer(keep):
    async def does(worker, task):
        return await (works if worker.place == "here" or crew.well else fails)(worker, task)

    crew = keep(does, starts=lambda number: {"place": "there" if number else "here"}, workers=2)
    crew.well = False
    await until(lambda: crew.status.workers == 2)
    for order in range(40):
        await crew.results(batches(2, seed=order), order)
        await until(lambda: crew.status.workers == 2)
    (note,) = crew.status.notes
    assert note.startswith("left out: a place where 3 tasks in a row failed that went well elsewhere; the last: dtd, ")
    assert sum(len(worker.ran) for worker in crew.hired if worker.place == "there") == 3
    crew.well, crew.keeper.wanted = True, lambda: 0
    crew.hired[0].kill()
    assert told(await crew.results(batches(2, seed=99), 99)) == titles(batches(2, seed=99))
    assert crew.status.notes == ()


async def test_a_worker_whose_place_is_left_out_keeps_no_task_from_others_by_its_adapter(keep):
    """Nor does one that may not try a task that failed where it is."""
    crew = keep(workers=2, starts=lambda number: {"place": f"place {number}"})
    await until(lambda: len(crew.keeper._roster.idle) == 2)
    await crew.results(batches(1))
    await until(lambda: len(crew.keeper._roster.idle) == 2)
    holder = next(worker for worker in crew.hired if worker.ran)
    crew.keeper._roster.failures[holder.place] = ["no"] * 3
    assert told(await crew.results(batches(2)[1:])) == titles(batches(2)[1:])
    assert len(holder.ran) == 1


# ------------------------------------------------------------ workers that have to go


async def test_a_worker_that_has_to_go_ends_its_task_gets_no_other_and_is_replaced_meanwhile(keep):
    gate = asyncio.Event()

    async def does(worker, task):
        if not worker.facts.pid:
            await gate.wait()
        return await works(worker, task)

    crew = keep(does, timeout=SOON)
    asked = crew.ask(batches(3))
    await until(lambda: crew.status.running)
    crew.hired[0].drain()
    await until(lambda: crew.status.done == 2)  # by the other
    assert (crew.status.workers, crew.status.running, crew.started) == (2, 1, 2)
    gate.set()
    assert await asked == titles(batches(3))
    await until(lambda: crew.status.workers == 1)
    assert [len(worker.ran) for worker in crew.hired] == [1, 2]
    assert (crew.status.lost, crew.status.executions, crew.keeper._roster.leaving) == (0, 3, set())


async def test_an_idle_worker_that_has_to_go_is_let_go_at_once(keep):
    crew = keep()
    await until(lambda: crew.keeper._roster.idle)
    crew.hired[0].drain()
    await until(lambda: crew.status.loads == 2)
    assert (crew.status.workers, crew.status.lost) == (1, 0)
    assert told(await crew.results(batches(2))) == titles(batches(2))
    assert crew.hired[0].ran == []


async def test_nobody_is_hired_before_what_a_lost_worker_took_is_free(keep):
    """Ray would start a machine for it."""
    crew = keep(once(dies), slow_to_free=True)
    asked = crew.ask(batches(1))
    await until(lambda: crew.status.lost)
    await idle()
    assert crew.started == 1
    crew.hired[0].room.set()
    assert await asked == titles(batches(1))


# ------------------------------------------------------------ those who no longer want it


async def test_the_first_failure_of_a_trial_ends_its_other_work(keep):
    async def does(worker, task):
        if task.start == 0:
            return await declines(worker, task)
        await asyncio.sleep(50 * WORK)
        return await works(worker, task)

    crew = keep(does)
    assert await outcome(crew.results(batches(9))) == DECLINED
    await asyncio.sleep(150 * WORK)
    assert len(crew.ran) <= 2  # one may have been begun before anybody heard
    assert (crew.status.queued, crew.keeper._jobs) == (0, {})


async def test_what_another_trial_wants_is_done_all_the_same(keep):
    crew = keep(unless(lambda task: task.start == 0, declines))
    bad, good = crew.ask([evaluation(stop=128), *batches(6)[2:]], 1), crew.ask(batches(4)[2:], 2)
    assert (await bad, await good) == (DECLINED, titles(batches(4)[2:]))
    assert crew.keeper._jobs == {}


@pytest.mark.parametrize("moment", range(6))
async def test_a_trial_that_ends_while_its_prompt_is_made_keeps_nobody_waiting(keep, moment):
    """Whoever shares a shard with it, or asks for the shard later, gets it."""
    (shard,) = batches(1, prompt="fpp")
    crew = keep(workers=0)

    async def ended(order, shard):
        asked = crew.ask([shard], order)
        for _ in range(moment):
            await asyncio.sleep(WORK / 4)
        asked.cancel()
        return asked

    sharing = crew.ask([shard], 2)
    first = await ended(1, shard)
    crew.keeper.wanted = lambda: 1
    assert await sharing == titles([shard])
    await asyncio.gather(first, return_exceptions=True)
    other = replace(shard, seed=5)
    await asyncio.gather(await ended(3, other), return_exceptions=True)
    assert told(await crew.results([other], 4)) == titles([other])
    assert crew.keeper._jobs == {}


async def test_work_that_nobody_wants_any_more_is_not_begun(keep, chain):
    crew = keep(workers=0)
    asked = crew.ask([*batches(3), *batches(2, prompt="fpp"), *chain])
    await until(lambda: crew.status.queued == 4)  # three shards, and the prompt of all others
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await until(lambda: not crew.keeper._jobs)
    assert crew.status.queued == 0
    crew.keeper.wanted = lambda: 1
    await crew.keeper.first()
    await idle()
    assert crew.ran == []


async def test_what_it_would_have_started_from_is_not_begun_either(keep):
    """Not even when the trial ends as the prompt has been asked for, but is not waited for yet."""
    crew = keep(workers=0)
    async with crew.keeper._changed:  # the keeper comes to a stop where it would tell the workers
        asked = crew.ask(batches(1, prompt="fpp"))
        await until(lambda: len(crew.keeper._jobs) == 2)
        await idle()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    await until(lambda: not (crew.keeper._jobs or crew.keeper._looking))


async def test_work_in_hand_that_nobody_wants_any_more_is_kept(keep):
    crew = keep()
    asked = crew.ask(batches(1))
    await until(lambda: crew.ran)
    asked.cancel()
    assert told(await crew.results(batches(1), 2)) == titles(batches(1))
    assert crew.status.executions == 1


async def test_a_lost_worker_is_not_followed_by_another_for_work_that_nobody_wants(keep):
    gate = asyncio.Event()

    async def dies_later(worker, task):
        await gate.wait()
        raise LostError("killed")

    crew = keep(dies_later, attempts=9, timeout=SOON)
    asked = crew.ask(batches(1))
    await until(lambda: crew.ran)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    gate.set()
    await until(lambda: crew.status.loads == 2)
    await idle()
    assert (crew.status.executions, crew.status.queued, crew.keeper._jobs) == (1, 0, {})


# ------------------------------------------------------------ when there is no use in going on


async def everything_ends(crew):
    """The reason, which all hear: two trials that wait, one that comes later, and whoever asks for a worker."""
    waiting = [crew.ask(batches(3), 1), crew.ask(batches(1, prompt="fpp"), 2)]
    first = await crew.keeper.first()
    heard = {*[await each for each in waiting], await crew.ask(batches(1, seed=3), 3), first.reason}
    started = crew.started
    await idle()
    assert crew.started == started, "workers are still being hired"
    assert (crew.status.queued, crew.keeper._jobs) == (0, {})
    assert heard == {crew.status.fatal}
    return crew.status.fatal, first


async def test_a_model_that_cannot_be_loaded_ends_everything_at_once(keep):
    def starts(number):
        raise TaskFailed("unknown model 'tinny'", "a traceback")

    crew = keep(starts=starts)
    fatal, first = await everything_ends(crew)
    assert (fatal, first.details, crew.started) == ("unknown model 'tinny'", "a traceback", 1)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(LostError("no node has room"), "no node has room"), (OSError("no such environment"), "OSError: no such env")],
)
async def test_three_workers_in_a_row_that_do_not_start_end_everything(keep, error, reason):
    def starts(number):
        raise error

    crew = keep(starts=starts)
    fatal, _ = await everything_ends(crew)
    assert fatal.startswith(f"workers do not start: {reason}")
    assert crew.started == 3


async def test_two_bad_starts_are_forgiven(keep):
    def starts(number):
        if number % 3 < 2:
            raise LostError("out of memory")
        return {}

    crew = keep(unless(lambda task: task.dataset == "pets", dies), starts=starts)
    await outcome(crew.results([evaluation(dataset="pets")]))  # two workers are lost on it
    assert told(await crew.results(batches(2), 2)) == titles(batches(2))
    assert (crew.status.fatal, crew.status.loads, crew.started) == (None, 3, 9)


async def test_workers_that_are_lost_together_while_they_start_are_one_bad_start(keep):
    """As when a machine is lost, and its workers are started again before that is known."""

    def starts(number):
        if 4 <= number < 12:
            raise LostError("its node was terminated")
        return {}

    crew = keep(starts=starts, workers=4)
    await until(lambda: len(crew.keeper.workers) == 4)
    for worker in crew.hired:
        worker.kill()
    await until(lambda: not crew.keeper.workers)
    assert told(await crew.results(batches(2))) == titles(batches(2))
    assert crew.status.fatal is None


async def test_bad_starts_while_another_works_do_not_count_once_it_is_lost_too(keep):
    crew = keep()
    await crew.keeper.first()
    last = ["its node was terminated, too"]

    def starts(number):
        if crew.keeper.workers:
            raise LostError("their node was terminated")
        if last:
            raise LostError(last.pop())
        return {}

    crew.starts, crew.keeper.wanted = starts, lambda: 2
    await until(lambda: crew.started > 6)
    assert crew.status.lost >= 5
    (note,) = crew.status.notes
    assert re.fullmatch(r"\d starts of workers in a row failed while others work; the last: their node .*", note)
    crew.hired[0].kill()
    assert told(await crew.results(batches(2))) == titles(batches(2))
    assert crew.status.fatal is None


async def test_a_machine_on_which_nothing_starts_does_not_stop_the_others(keep):
    def starts(number):
        if number:
            raise LostError("its disk is broken")
        return {}

    crew = keep(starts=starts, workers=2)
    await until(lambda: crew.started > 6)
    assert told(await crew.results(batches(2))) == titles(batches(2))
    assert crew.status.fatal is None


async def test_other_weights_on_a_second_worker_end_everything(keep):
    crew = keep(hangs, timeout=SOON, starts=lambda number: {"digest": "others", "node": "gpu7"} if number else {})
    asked = crew.ask(batches(2))
    await until(lambda: crew.status.running)
    crew.keeper.wanted = lambda: 2
    reason = await asked
    assert reason == crew.status.fatal
    assert reason.startswith("gpu7: its model m has other weights than the first worker's; put the same file")
    assert crew.hired[1].dead.is_set()
    assert (crew.status.loads, crew.status.workers) == (1, 1)


async def test_the_first_worker_says_what_it_holds(keep):
    assert (await keep().keeper.first()).digest == "weights"


async def test_not_knowing_how_many_workers_there_should_be_ends_everything(keep):
    def wanted():
        raise ConnectionError("the head node is gone")

    fatal, _ = await everything_ends(keep(workers=wanted))
    assert fatal.endswith("ConnectionError: the head node is gone")


# ------------------------------------------------------------ more and fewer workers


async def test_workers_join_when_more_are_wanted(keep):
    crew = keep(hangs, timeout=SOON)
    crew.ask(batches(3))
    await until(lambda: crew.status.running == 1)
    await until(lambda: crew.status.queued == 2)
    crew.keeper.wanted = lambda: 3
    await until(lambda: crew.status.running == 3)
    assert (crew.status.workers, crew.status.loads, crew.status.pids) == (3, 3, (0, 1, 2))


async def test_a_lost_worker_is_not_replaced_when_fewer_are_wanted(keep):
    crew = keep(once(dies), workers=2)
    await until(lambda: crew.status.workers == 2)
    crew.keeper.wanted = lambda: 1
    assert told(await crew.results(batches(4))) == titles(batches(4))
    await idle()
    assert (crew.status.workers, crew.status.loads, crew.status.lost) == (1, 2, 1)


# ------------------------------------------------------------ disks


class BrokenStore(TaskStore):
    """A disk that has been filled, or cannot be read."""

    def __init__(self, root, **errors):
        super().__init__(root)
        self.errors = errors

    def put(self, key, result):
        if "put" in self.errors:
            raise self.errors["put"]
        super().put(key, result)

    def get(self, key):
        if "get" in self.errors:
            raise self.errors["get"]
        return super().get(key)


FULL = OSError(28, "No space left on device")


async def test_a_full_disk_is_no_verdict_on_the_task_and_spares_the_worker(keep, tmp_path):
    store = BrokenStore(tmp_path, put=FULL)
    crew = keep(store=store)
    with pytest.raises(MachineError, match=r"^No space left on device; make room, then go on with --resume$"):
        await crew.results(batches(1))
    store.errors.clear()
    assert told(await crew.results(batches(1), 2)) == titles(batches(1))
    status = crew.status
    assert (status.loads, status.lost, status.executions, status.done) == (1, 0, 2, 1)
    assert status.held == 3.0  # the worker was held both times


async def test_a_prompt_that_cannot_be_written_fails_the_shards_that_wait_for_it(keep, tmp_path):
    with pytest.raises(MachineError, match="No space left"):
        await keep(store=BrokenStore(tmp_path, put=FULL)).results(batches(2, prompt="fpp"))
    reason = await outcome(keep(store=BrokenStore(tmp_path, put=ValueError("no"))).results(batches(2, prompt="fpp")))
    assert reason == "dtd, pretraining, seed 0: not written down: ValueError: no"


async def test_a_store_that_cannot_be_asked_fails_the_task(keep, tmp_path):
    crew = keep(store=BrokenStore(tmp_path, get=RuntimeError("stale file handle")))
    with pytest.raises(RuntimeError, match="stale file handle"):
        await crew.results(batches(2))
    assert crew.keeper._jobs == {}


# ------------------------------------------------------------ who pays


def bill(found):
    total = {}
    for result in found:
        for stage, value in result.seconds.items():
            total[stage] = total.get(stage, 0.0) + value
    return total, sum(result.held for result in found)


async def test_the_trial_that_asked_first_pays_and_pays_once(keep, chain):
    """Also for the prompt, which its shards ask for before it does."""
    tasks, free = [*chain[:3], pretrain()], ({}, 0.0)
    crew = keep(workers=2)
    together = await asyncio.gather(crew.results(tasks, 1), crew.results(tasks, 2))
    bills = [bill(found) for found in (*together, await crew.results(tasks, 3))]
    assert bills == [({"adapt": 3.0, "pretrain": 2.0}, 7.0), free, free]
    assert crew.status.held == 7.0


async def test_a_task_that_was_tried_twice_is_paid_once(keep):
    assert bill(await keep(once(dies)).results(batches(2))) == ({"adapt": 2.0}, 3.0)


# ------------------------------------------------------------ whatever happens


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_everything_asked_for_ends(tmp_path_factory, data):
    """Trials that overlap, are cancelled and fail; workers that die, hang, raise and do not start."""
    fates = data.draw(st.lists(st.sampled_from([works] * 6 + [dies, declines, fails]), max_size=12))
    bad_starts = set(data.draw(st.lists(st.integers(0, 6), max_size=3)))
    one = st.tuples(
        st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True),
        st.sampled_from([{}, {"prompt": "fpp"}, {"method": "running_mean"}]),
        st.booleans(),
        st.integers(0, 3),
    )
    trials = data.draw(st.lists(one, min_size=1, max_size=5))
    running = []

    async def does(worker, task):
        stateful = task.config.method == "running_mean"
        assert not (stateful and running), "two shards of a chain at once"
        running.extend([task] * stateful)
        try:
            return await (fates.pop() if fates else works)(worker, task)
        finally:
            running.clear() if stateful else None

    def starts(number):
        if number in bad_starts:
            raise LostError("no")
        return {}

    async def scenario():
        crew = Crew(does=does, starts=starts, workers=2).begin(tmp_path_factory.mktemp("tasks"))
        asked, wanted = [], []
        for order, (places, config, _, _) in enumerate(trials):
            wanted.append([batches(6, **config)[place] for place in places])
            asked.append(crew.ask(wanted[-1], order))
        for each, (_, _, cancelled, pause) in zip(asked, trials, strict=True):
            await asyncio.sleep(pause * WORK)
            if cancelled:
                each.cancel()
        found = await asyncio.gather(*asked, return_exceptions=True)
        for each, tasks, (_, _, cancelled, _) in zip(found, wanted, trials, strict=True):
            assert (
                each == titles(tasks)
                or isinstance(each, str)
                or (cancelled and isinstance(each, asyncio.CancelledError))
            ), each
        await until(lambda: not crew.keeper._jobs and not crew.status.queued)

    async def limited():
        async with asyncio.timeout(SOON):
            await scenario()

    with registered(RUNNING_MEAN), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "SHARD", 64)
        patch.setattr(module, "HIRE_EVERY", 0.005)
        asyncio.run(limited())
