"""Every task ends, once, with a result or a reason, whatever becomes of those who work on it."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from fpp_sweep.trial.tasks import EvalTask, PretrainTask
from hypothesis import given, settings
from hypothesis import strategies as st

from fpp_sweep.trial.results import Done, Failure, ModelFacts, TaskFailedError, UnitStore
from fpp_sweep.workers import keeper as module
from fpp_sweep.workers.keeper import Keeper, LostError
from tests.trial.made import NAMES, evaluation

SOON = 5.0  # seconds within which everything here has ended, or hangs
WORK = 0.001  # seconds for a task
TIMEOUT = 0.2


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "STAFF_EVERY", 0.005)


def pretrain(**config):
    return evaluation(prompt="fpp", **config).pretrain


def batches(count, **changes):
    return [evaluation(start=64 * place, stop=64 * (place + 1), **changes) for place in range(count)]


@dataclass(eq=False)
class Hand:
    """Does what the crew says about a task: a result, or something worse."""

    crew: "Crew"
    facts: ModelFacts
    killed: bool = False
    ran: list[Any] = field(default_factory=list)

    async def run(self, task, prompt):
        self.ran.append(task)
        self.crew.ran.append(task)
        self.crew.prompts.append(prompt)
        return await self.crew.does(self, task)

    async def gone(self):
        while not self.killed:
            await asyncio.sleep(0.005)

    def kill(self):
        self.killed = True


@dataclass(eq=False)
class Crew:
    """Hires hands, and keeps the book of what they did."""

    does: Any = None  # (hand, task) -> Done or Failure; None: works at once
    starts: Any = None  # number -> ModelFacts changes; may raise
    hands: list[Any] = field(default_factory=list)
    ran: list[Any] = field(default_factory=list)
    prompts: list[Any] = field(default_factory=list)
    started: int = 0

    def __post_init__(self):
        self.does = self.does or works

    async def hire(self):
        number, self.started = self.started, self.started + 1
        facts = ModelFacts(
            name="m", digest="weights", embedding_scale=1.0, device="cpu", node="here", pid=number, seconds=0.1
        )
        changes = self.starts(number) if self.starts else {}
        await asyncio.sleep(WORK)
        hand = Hand(self, replace(facts, **changes))
        self.hands.append(hand)
        return hand


async def works(hand, task):
    await asyncio.sleep(WORK)
    if isinstance(task, PretrainTask):
        return Done(prompt=task.key().encode(), seconds={"pretrain": 2.0}, held=2.5)
    return Done(skipped=task.stop - task.start, seconds={"adapt": 1.0}, held=1.5)


async def dies(hand, task):
    await asyncio.sleep(WORK)
    raise LostError("killed")


async def hangs(hand, task):
    await asyncio.sleep(3600)


async def declines(hand, task):
    return Failure(reason="ValueError: not this one", details="a traceback")


def unless(wanted, otherwise):
    """Works, but for tasks that are `wanted`."""

    async def does(hand, task):
        return await (otherwise if wanted(task) else works)(hand, task)

    return does


@asynccontextmanager
async def keeping(crew, folder, *, workers=1, attempts=2, timeout=TIMEOUT, store=None):
    keeper = Keeper(
        hire=crew.hire,
        wanted=workers if callable(workers) else lambda: workers,
        names=NAMES,
        store=store or UnitStore(folder),
        attempts=attempts,
        timeout=timeout,
    )
    staff = asyncio.create_task(keeper.staff())
    try:
        yield keeper
    finally:
        for each in (staff, *keeper._employed):
            each.cancel()
        await asyncio.gather(staff, *keeper._employed, return_exceptions=True)


def run(scenario):
    """A scenario that does not hang."""

    async def limited():
        async with asyncio.timeout(SOON):
            return await scenario()

    return asyncio.run(limited())


async def outcome(awaitable):
    """A reason instead of results, where it failed."""
    try:
        return await awaitable
    except TaskFailedError as error:
        return error.failure.reason


async def until(holds):
    while not holds():
        await asyncio.sleep(WORK)


# ------------------------------------------------------------ each once


def test_results_come_in_the_order_of_the_tasks(tmp_path):
    tasks = batches(6)

    async def scenario():
        async with keeping(Crew(), tmp_path, workers=3) as keeper:
            sizes = [replace(task, stop=task.start + 64 - place) for place, task in enumerate(tasks)]
            return [done.skipped for done in await keeper.results(sizes, 1)]

    assert run(scenario) == [64, 63, 62, 61, 60, 59]


def test_who_asks_for_the_same_at_once_gets_the_same_work(tmp_path):
    crew = Crew()

    async def scenario():
        async with keeping(crew, tmp_path, workers=3) as keeper:
            found = await asyncio.gather(*(keeper.results(batches(2), order) for order in range(1, 9)))
            return found, keeper.status()

    found, status = run(scenario)
    assert len(crew.ran) == 2
    assert {done.skipped for each in found for done in each} == {64}
    assert (status.executions, status.done, status.at_hand) == (2, 2, 14)
    assert status.images == 128


def test_what_is_on_disk_needs_no_work_and_no_worker(tmp_path):
    async def first():
        async with keeping(Crew(), tmp_path) as keeper:
            await keeper.results([*batches(2, prompt="fpp"), pretrain()], 1)

    async def second():
        async with keeping(Crew(), tmp_path, workers=0) as keeper:
            found = await keeper.results([*batches(2, prompt="fpp"), pretrain()], 1)
            return found, keeper.status()

    run(first)
    found, status = run(second)
    assert [done.skipped for done in found] == [64, 64, 0]
    assert found[2].prompt == pretrain().key().encode()
    assert [(dict(done.seconds), done.held) for done in found] == [({}, 0.0)] * 3
    assert (status.executions, status.at_hand, status.held) == (0, 3, 0.0)


def test_a_damaged_result_on_disk_is_worked_on_again(tmp_path):
    async def scenario():
        async with keeping(Crew(), tmp_path) as keeper:
            await keeper.results(batches(1), 1)
            (path,) = (each for each in tmp_path.rglob("*") if each.is_file())
            path.write_bytes(path.read_bytes()[:-1])
            (done,) = await keeper.results(batches(1), 2)
            return done.skipped, keeper.status().executions

    assert run(scenario) == (64, 2)


def test_shards_start_from_the_prompt_that_is_made_once_for_all_of_them(tmp_path):
    crew = Crew()

    async def scenario():
        async with keeping(crew, tmp_path, workers=2) as keeper:
            await keeper.results(batches(3, prompt="fpp"), 1)

    run(scenario)
    assert [isinstance(task, PretrainTask) for task in crew.ran] == [True, False, False, False]
    assert crew.prompts == [None] + [pretrain().key().encode()] * 3


# ------------------------------------------------------------ what comes first


def tell(tasks):
    return [(task.dataset, task.start) if isinstance(task, EvalTask) else "pretraining" for task in tasks]


def turns(tmp_path, *asked, before=()):
    """What one worker does and in which turn, when trials have asked for tasks; `before` it has done already."""
    crew = Crew()
    gate = asyncio.Event()

    async def waits(hand, task):
        await gate.wait()
        return await works(hand, task)

    async def scenario():
        async with keeping(crew, tmp_path, timeout=SOON) as keeper:
            await keeper.results(before, 0)
            crew.does = waits
            busy = asyncio.create_task(keeper.results([evaluation(seed=9)], 0))
            await until(lambda: keeper.status().running)
            del crew.ran[:]
            waiting = [asyncio.create_task(keeper.results(tasks, order)) for order, tasks in asked]
            await until(lambda: keeper.status().queued == len({task for _, tasks in asked for task in tasks}))
            await asyncio.sleep(5 * WORK)
            gate.set()
            await asyncio.gather(busy, *waiting)

    run(scenario)
    return tell(crew.ran)


def test_the_oldest_trial_comes_first_and_in_it_the_largest_work(tmp_path):
    small, large, few_classes = evaluation(), evaluation(start=64, stop=320), evaluation(dataset="pets")
    late = evaluation(start=320, stop=640)
    assert turns(tmp_path, (7, [late]), (3, [few_classes, small, large])) == [
        ("dtd", 64),
        ("dtd", 0),
        ("pets", 0),
        ("dtd", 320),
    ]


def test_work_that_an_older_trial_wants_too_takes_its_turn(tmp_path):
    shared, larger = evaluation(start=320, stop=640), evaluation(stop=320, method="otpt", **{"adapt.steps": 9})
    assert turns(tmp_path, (9, [larger, shared])) == [("dtd", 0), ("dtd", 320)]
    assert turns(tmp_path / "other", (9, [larger, shared]), (2, [shared])) == [("dtd", 320), ("dtd", 0)]


def test_known_features_come_before_larger_work_but_after_older_trials(tmp_path):
    known, larger = evaluation(method="ctpt"), evaluation(start=64, stop=640, method="ctpt")
    older = evaluation(start=128, stop=192)
    asked = (8, [larger, known]), (5, [older])
    assert turns(tmp_path, *asked, before=[evaluation()]) == [("dtd", 128), ("dtd", 0), ("dtd", 64)]
    assert turns(tmp_path / "other", *asked) == [("dtd", 128), ("dtd", 64), ("dtd", 0)]


@pytest.mark.parametrize("nodes", [("left", "right"), ("same", "same")])
def test_a_machine_does_first_what_it_has_the_features_of(tmp_path, nodes):
    """On one machine all features are at hand, and the larger shard comes first."""
    took = {}
    gates = [asyncio.Event(), asyncio.Event()]

    async def does(hand, task):
        if task.dataset == "pets":
            await gates[hand.facts.pid].wait()
        else:
            took.setdefault(task.start, hand.facts.pid)
            await until(lambda: len(took) == 2)  # so that each worker has had one
        return await works(hand, task)

    crew = Crew(does=does, starts=lambda number: {"node": nodes[number]})

    async def scenario():
        async with keeping(crew, tmp_path, workers=2, timeout=SOON) as keeper:
            await keeper.results(batches(2), 1)
            busy = asyncio.create_task(keeper.results(batches(2, dataset="pets"), 1))
            await until(lambda: keeper.status().running == 2)
            had = next(start for start, pid in took.items() if pid == 0)
            again = [
                evaluation(start=start, stop=start + 64, **{"adapt.steps": 2 if start == had else 9}) for start in took
            ]
            asked = asyncio.create_task(keeper.results(again, 2))
            await until(lambda: keeper.status().queued == 2)
            gates[0].set()
            await asked
            gates[1].set()
            await busy
            return had, [task.start for task in crew.hands[0].ran[-2:]]

    had, turn = run(scenario)
    assert turn == ([had, 64 - had] if nodes == ("left", "right") else [64 - had, had])


# ------------------------------------------------------------ losses


def once(otherwise):
    """The first task goes wrong, for whoever has it."""
    left = [otherwise]

    async def does(hand, task):
        return await (left.pop() if left else works)(hand, task)

    return does


@pytest.mark.parametrize("otherwise", [dies, hangs])
def test_a_lost_worker_costs_time_and_no_result(tmp_path, otherwise):
    crew = Crew(does=once(otherwise))

    async def scenario():
        async with keeping(crew, tmp_path) as keeper:
            found = await keeper.results(batches(3), 1)
            return [done.skipped for done in found], keeper.status()

    found, status = run(scenario)
    assert found == [64] * 3
    assert (status.lost, status.loads, status.executions, status.done) == (1, 2, 4, 3)
    first, second = crew.hands
    assert (first.killed, len(first.ran)) == (True, 1)
    assert (second.killed, len(second.ran)) == (True, 3)  # killed when the test let it go
    assert (status.workers, status.pids) == (1, (second.facts.pid,))


@pytest.mark.parametrize(
    ("otherwise", "reason"), [(dies, r"its worker died \(killed\)"), (hangs, "no result after 0.2 s")]
)
@pytest.mark.parametrize("attempts", [1, 3])
def test_a_poisonous_task_takes_as_many_workers_as_it_has_attempts(tmp_path, otherwise, reason, attempts):
    crew = Crew(does=unless(lambda task: task.start == 64, otherwise))

    async def scenario():
        async with keeping(crew, tmp_path, workers=2, attempts=attempts) as keeper:
            with pytest.raises(
                TaskFailedError, match=rf"^dtd, samples 64\.\.128: {reason}; {attempts} of {attempts} att"
            ):
                await keeper.results(batches(3), 1)
            await keeper.results(batches(1), 2)  # others live on
            await until(lambda: keeper.status().workers == 2)
            return keeper.status()

    status = run(scenario)
    assert (status.lost, status.loads) == (attempts, attempts + 2)
    assert sum(task.start == 64 for task in crew.ran) == attempts


def test_a_failure_is_told_and_not_tried_again(tmp_path):
    crew = Crew(does=declines)

    async def scenario():
        async with keeping(crew, tmp_path, attempts=5) as keeper:
            with pytest.raises(TaskFailedError) as told:
                await keeper.results(batches(1), 1)
            return told.value.failure, keeper.status()

    failure, status = run(scenario)
    assert failure == Failure(reason="ValueError: not this one", details="a traceback")
    assert (status.executions, status.lost, status.workers, status.done) == (1, 0, 1, 0)


def test_a_failure_is_not_remembered(tmp_path):
    crew = Crew(does=once(declines))

    async def scenario():
        async with keeping(crew, tmp_path) as keeper:
            return [await outcome(keeper.results(batches(1), order)) for order in (1, 2)]

    first, second = run(scenario)
    assert first == "ValueError: not this one"
    assert second[0].skipped == 64


def test_a_worker_that_raises_what_nobody_expects_is_lost_and_nobody_waits_for_it(tmp_path):
    async def strange(hand, task):
        raise RuntimeError("the object store is gone")

    crew = Crew(does=strange)

    async def scenario():
        async with keeping(crew, tmp_path) as keeper:
            reason = await outcome(keeper.results(batches(1), 1))
            await until(lambda: keeper.status().lost == 2)
            return reason

    assert run(scenario).endswith("its worker died (RuntimeError: the object store is gone); 2 of 2 attempts")


def test_workers_that_die_with_nothing_to_do_are_replaced_and_cost_no_attempt(tmp_path):
    async def scenario():
        crew = Crew()
        async with keeping(crew, tmp_path, workers=2, attempts=1) as keeper:
            while len(keeper.hands) < 2:
                await asyncio.sleep(WORK)
            for hand in crew.hands:
                hand.kill()
            while crew.started < 4:
                await asyncio.sleep(WORK)
            await keeper.results([evaluation()], order=0)
            return keeper.status().lost, [hand.ran for hand in crew.hands[:2]]

    assert run(scenario) == (2, [[], []])


# ------------------------------------------------------------ prompts that fail


def is_pretraining(task):
    return isinstance(task, PretrainTask)


@pytest.mark.parametrize(
    ("otherwise", "reason"),
    [(declines, "ValueError: not this one"), (dies, "dtd, pretraining: its worker died (killed); 2 of 2 attempts")],
)
def test_a_pretraining_that_fails_fails_every_shard_that_waits_for_it(tmp_path, otherwise, reason):
    crew = Crew(does=unless(is_pretraining, otherwise))
    asked = [[shard] for shard in batches(3, prompt="fpp")] + [[pretrain()]]

    async def scenario():
        async with keeping(crew, tmp_path) as keeper:
            told = [outcome(keeper.results(tasks, order)) for order, tasks in enumerate(asked)]
            found = await asyncio.gather(*told)
            return found, keeper.status(), keeper._jobs

    found, status, jobs = run(scenario)
    assert found == [reason] * 4
    assert all(map(is_pretraining, crew.ran))
    assert (status.queued, jobs) == (0, {})


# ------------------------------------------------------------ those who no longer want it


def test_the_first_failure_of_a_trial_ends_its_other_work(tmp_path):
    async def does(hand, task):
        if task.start == 0:
            return await declines(hand, task)
        await asyncio.sleep(50 * WORK)
        return await works(hand, task)

    crew = Crew(does=does)

    async def scenario():
        async with keeping(crew, tmp_path) as keeper:
            tasks = [evaluation(stop=128), *batches(9)[2:]]  # the largest is the first
            reason = await outcome(keeper.results(tasks, 1))
            await asyncio.sleep(150 * WORK)
            return reason, keeper.status(), keeper._jobs

    reason, status, jobs = run(scenario)
    assert reason == "ValueError: not this one"
    assert len(crew.ran) <= 2  # one may have been begun before anybody heard
    assert (status.queued, jobs) == (0, {})


def test_what_another_trial_wants_is_done_all_the_same(tmp_path):
    crew = Crew(does=unless(lambda task: task.start == 0, declines))

    async def scenario():
        async with keeping(crew, tmp_path) as keeper:
            bad = asyncio.create_task(outcome(keeper.results([evaluation(stop=128), *batches(6)[2:]], 1)))
            good = asyncio.create_task(keeper.results(batches(4)[2:], 2))
            return await bad, [done.skipped for done in await good], keeper._jobs

    assert run(scenario) == ("ValueError: not this one", [64, 64], {})


@pytest.mark.parametrize("moment", range(6))
def test_a_trial_that_ends_while_its_prompt_is_made_keeps_nobody_waiting(tmp_path, moment):
    """Whoever shares a shard with it, or asks for the shard later, gets it."""
    (shard,) = batches(1, prompt="fpp")

    async def scenario():
        async with keeping(Crew(), tmp_path, workers=0) as keeper:
            first = asyncio.create_task(keeper.results([shard], 1))
            sharing = asyncio.create_task(keeper.results([shard], 2))
            for _ in range(moment):
                await asyncio.sleep(WORK / 4)
            first.cancel()
            keeper.wanted = lambda: 1
            shared = await sharing
            await asyncio.gather(first, return_exceptions=True)
            alone = asyncio.create_task(keeper.results([replace(shard, seed=5)], 3))
            for _ in range(moment):
                await asyncio.sleep(WORK / 4)
            alone.cancel()
            await asyncio.gather(alone, return_exceptions=True)
            again = await keeper.results([replace(shard, seed=5)], 4)
            return shared[0].skipped, again[0].skipped, keeper._jobs

    assert run(scenario) == (64, 64, {})


def test_work_that_nobody_wants_any_more_is_not_begun(tmp_path):
    crew = Crew()

    async def scenario():
        async with keeping(crew, tmp_path, workers=0) as keeper:
            asked = asyncio.create_task(keeper.results([*batches(3), *batches(2, prompt="fpp")], 1))
            await until(lambda: len(keeper._queue) == 4)  # three shards, and the prompt of two more
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            left = keeper.status().queued, dict(keeper._jobs)
            keeper.wanted = lambda: 1
            await keeper.first()
            await asyncio.sleep(20 * WORK)
            return left

    assert run(scenario) == (0, {})
    assert crew.ran == []


def test_work_in_hand_that_nobody_wants_any_more_is_kept(tmp_path):
    crew = Crew()

    async def scenario():
        async with keeping(crew, tmp_path) as keeper:
            asked = asyncio.create_task(keeper.results(batches(1), 1))
            await until(lambda: crew.ran)
            asked.cancel()
            (done,) = await keeper.results(batches(1), 2)
            return done.skipped, keeper.status().executions

    assert run(scenario) == (64, 1)


def test_a_lost_worker_is_not_followed_by_another_for_work_that_nobody_wants(tmp_path):
    gate = asyncio.Event()

    async def dies_later(hand, task):
        await gate.wait()
        raise LostError("killed")

    crew = Crew(does=dies_later)

    async def scenario():
        async with keeping(crew, tmp_path, attempts=9, timeout=SOON) as keeper:
            asked = asyncio.create_task(keeper.results(batches(1), 1))
            await until(lambda: crew.ran)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            gate.set()
            await until(lambda: keeper.status().loads == 2)
            await asyncio.sleep(20 * WORK)
            return keeper.status(), keeper._jobs

    status, jobs = run(scenario)
    assert (status.executions, status.queued, jobs) == (1, 0, {})


# ------------------------------------------------------------ when there is no use in going on


def everything_ends(crew, folder, **changes):
    """The keeper's reason, what two trials hear that wait, and what one hears that comes later."""

    async def scenario():
        async with keeping(crew, folder, **changes) as keeper:
            waiting = [
                asyncio.create_task(outcome(keeper.results(batches(3), 1))),
                asyncio.create_task(outcome(keeper.results(batches(1, prompt="fpp"), 2))),
            ]
            first = keeper.first()
            told = [await each for each in waiting]
            later = await outcome(keeper.results(batches(1, seed=3), 3))
            started = crew.started
            await asyncio.sleep(20 * WORK)
            assert crew.started == started, "workers are still being hired"
            return keeper.status(), await first, {*told, later}, keeper._jobs

    status, first, told, jobs = run(scenario)
    assert (status.queued, jobs) == (0, {})
    fatal = status.fatal
    assert told == {fatal}
    return fatal, first


def test_a_model_that_cannot_be_loaded_ends_everything_at_once(tmp_path):
    def starts(number):
        raise TaskFailedError(Failure(reason="unknown model 'tinny'", details="a traceback"))

    crew = Crew(starts=starts)
    fatal, first = everything_ends(crew, tmp_path)
    assert fatal == "unknown model 'tinny'"
    assert first == Failure(reason=fatal, details="a traceback")
    assert crew.started == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [(LostError("no node has room"), "no node has room"), (OSError("no such environment"), "OSError: no such env")],
)
def test_three_workers_in_a_row_that_do_not_start_end_everything(tmp_path, error, told):
    def starts(number):
        raise error

    crew = Crew(starts=starts)
    fatal, _ = everything_ends(crew, tmp_path)
    assert fatal.startswith(f"workers do not start: {told}")
    assert crew.started == 3


def test_two_bad_starts_are_forgiven(tmp_path):
    def starts(number):
        if number % 3 < 2:
            raise LostError("out of memory")
        return {}

    crew = Crew(starts=starts, does=unless(lambda task: task.dataset == "pets", dies))

    async def scenario():
        async with keeping(crew, tmp_path) as keeper:
            await outcome(keeper.results([evaluation(dataset="pets")], 1))  # two workers are lost on it
            found = await keeper.results(batches(2), 2)
            return [done.skipped for done in found], keeper.status()

    found, status = run(scenario)
    assert found == [64, 64]
    assert (status.fatal, status.loads) == (None, 3)
    assert crew.started == 9


def test_workers_that_are_lost_together_while_they_start_are_one_bad_start(tmp_path):
    """As when a machine is lost, and its workers are started again before that is known."""

    def starts(number):
        if 4 <= number < 12:
            raise LostError("its node was terminated")
        return {}

    crew = Crew(starts=starts)

    async def scenario():
        async with keeping(crew, tmp_path, workers=4) as keeper:
            await until(lambda: len(keeper.hands) == 4)
            for hand in crew.hands:
                hand.kill()
            await until(lambda: not keeper.hands)
            return [done.skipped for done in await keeper.results(batches(2), 1)], keeper.status().fatal

    assert run(scenario) == ([64, 64], None)


def test_bad_starts_while_another_works_do_not_count_once_it_is_lost_too(tmp_path):
    crew = Crew()

    async def scenario():
        async with keeping(crew, tmp_path) as keeper:
            await keeper.first()
            last = ["its node was terminated, too"]

            def starts(number):
                if keeper.hands:
                    raise LostError("their node was terminated")
                if last:
                    raise LostError(last.pop())
                return {}

            crew.starts, keeper.wanted = starts, lambda: 2
            await until(lambda: crew.started > 6)
            crew.hands[0].kill()
            return [done.skipped for done in await keeper.results(batches(2), 1)], keeper.status().fatal

    assert run(scenario) == ([64, 64], None)


def test_a_machine_on_which_nothing_starts_does_not_stop_the_others(tmp_path):
    def starts(number):
        if number:
            raise LostError("its disk is broken")
        return {}

    crew = Crew(starts=starts)

    async def scenario():
        async with keeping(crew, tmp_path, workers=2) as keeper:
            await until(lambda: crew.started > 6)
            return [done.skipped for done in await keeper.results(batches(2), 1)], keeper.status().fatal

    assert run(scenario) == ([64, 64], None)


@pytest.mark.parametrize("names", [NAMES, replace(NAMES, model="")], ids=["named", "before anything has a name"])
def test_other_weights_on_a_second_worker_end_everything(tmp_path, names):
    crew = Crew(does=hangs, starts=lambda number: {"digest": "weights" if number == 0 else "others", "node": "gpu7"})

    async def scenario():
        async with keeping(crew, tmp_path, timeout=SOON) as keeper:
            keeper.names = names
            asked = asyncio.create_task(outcome(keeper.results(batches(2), 1)))
            await until(lambda: keeper.status().running)
            keeper.wanted = lambda: 2
            return await asked, keeper.status()

    reason, status = run(scenario)
    assert reason == status.fatal
    assert reason.startswith("gpu7: its model m has other weights than the first worker's; put the same file")
    assert crew.hands[1].killed
    assert (status.loads, status.workers) == (1, 1)


def test_the_first_worker_says_what_it_holds(tmp_path):
    async def scenario():
        async with keeping(Crew(), tmp_path) as keeper:
            return await keeper.first()

    assert run(scenario).digest == "weights"


def test_not_knowing_how_many_workers_there_should_be_ends_everything(tmp_path):
    def wanted():
        raise ConnectionError("the head node is gone")

    fatal, _ = everything_ends(Crew(), tmp_path, workers=wanted)
    assert fatal.endswith("ConnectionError: the head node is gone")


# ------------------------------------------------------------ more and fewer workers


def test_workers_join_when_more_are_wanted(tmp_path):
    wanted = [1]
    crew = Crew(does=hangs)

    async def scenario():
        async with keeping(crew, tmp_path, workers=lambda: wanted[0], timeout=SOON) as keeper:
            asked = asyncio.create_task(keeper.results(batches(3), 1))
            await until(lambda: keeper.status().running == 1)
            assert keeper.status().queued == 2
            wanted[0] = 3
            await until(lambda: keeper.status().running == 3)
            asked.cancel()
            return keeper.status()

    status = run(scenario)
    assert (status.workers, status.loads, status.pids) == (3, 3, (0, 1, 2))


def test_a_lost_worker_is_not_replaced_when_fewer_are_wanted(tmp_path):
    wanted = [2]
    crew = Crew(does=once(dies))

    async def scenario():
        async with keeping(crew, tmp_path, workers=lambda: wanted[0]) as keeper:
            await until(lambda: keeper.status().workers == 2)
            wanted[0] = 1
            found = await keeper.results(batches(4), 1)
            await asyncio.sleep(20 * WORK)
            return [done.skipped for done in found], keeper.status()

    found, status = run(scenario)
    assert found == [64] * 4
    assert (status.workers, status.loads, status.lost) == (1, 2, 1)


# ------------------------------------------------------------ disks


class BrokenStore(UnitStore):
    """A disk that has been filled, or cannot be read."""

    def __init__(self, root, **errors):
        super().__init__(root)
        self.errors = errors

    def put(self, key, done):
        if "put" in self.errors:
            raise self.errors["put"]
        super().put(key, done)

    def get(self, key):
        if "get" in self.errors:
            raise self.errors["get"]
        return super().get(key)


def test_a_full_disk_fails_the_task_and_spares_the_worker(tmp_path):
    crew = Crew()
    store = BrokenStore(tmp_path, put=OSError(28, "No space left on device"))

    async def scenario():
        async with keeping(crew, tmp_path, store=store) as keeper:
            reason = await outcome(keeper.results(batches(1), 1))
            store.errors.clear()
            (done,) = await keeper.results(batches(1), 2)
            return reason, done.skipped, keeper.status()

    reason, skipped, status = run(scenario)
    assert reason == "dtd, samples 0..64: not written down: OSError: [Errno 28] No space left on device"
    assert skipped == 64
    assert (status.loads, status.lost, status.executions, status.done) == (1, 0, 2, 1)
    assert status.held == 3.0  # the worker was held both times


def test_a_prompt_that_cannot_be_written_fails_the_shards_that_wait_for_it(tmp_path):
    store = BrokenStore(tmp_path, put=OSError(28, "No space left on device"))

    async def scenario():
        async with keeping(Crew(), tmp_path, store=store) as keeper:
            return await outcome(keeper.results(batches(2, prompt="fpp"), 1))

    assert run(scenario).startswith("dtd, pretraining: not written down: OSError")


def test_a_store_that_cannot_be_asked_fails_the_task(tmp_path):
    store = BrokenStore(tmp_path, get=RuntimeError("stale file handle"))

    async def scenario():
        async with keeping(Crew(), tmp_path, store=store) as keeper:
            with pytest.raises(RuntimeError, match="stale file handle"):
                await keeper.results(batches(2), 1)
            return keeper._jobs

    assert run(scenario) == {}


# ------------------------------------------------------------ who pays


def bill(found):
    total = {}
    for done in found:
        for stage, value in done.seconds.items():
            total[stage] = total.get(stage, 0.0) + value
    return total, sum(done.held for done in found)


def test_the_trial_that_asked_first_pays_and_pays_once(tmp_path):
    """Also for the prompt, which its shards ask for before it does."""
    tasks = [*batches(3, prompt="fpp"), pretrain()]
    free = ({}, 0.0)

    async def scenario():
        async with keeping(Crew(), tmp_path, workers=2) as keeper:
            together = await asyncio.gather(keeper.results(tasks, 1), keeper.results(tasks, 2))
            later = await keeper.results(tasks, 3)
            return [bill(found) for found in (*together, later)], keeper.status().held

    bills, held = run(scenario)
    assert bills == [({"adapt": 3.0, "pretrain": 2.0}, 7.0), free, free]
    assert held == 7.0


def test_a_task_that_was_tried_twice_is_paid_once(tmp_path):
    async def scenario():
        async with keeping(Crew(does=once(dies)), tmp_path) as keeper:
            return bill(await keeper.results(batches(2), 1))

    assert run(scenario) == ({"adapt": 2.0}, 3.0)


# ------------------------------------------------------------ whatever happens


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_everything_asked_for_ends(tmp_path_factory, data):
    """Trials that overlap, are cancelled and fail; workers that die, hang, raise and do not start."""
    fates = data.draw(st.lists(st.sampled_from([works] * 6 + [dies, declines]), max_size=12))
    bad_starts = set(data.draw(st.lists(st.integers(0, 6), max_size=3)))
    trials = data.draw(
        st.lists(
            st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True), st.booleans(), st.booleans()),
            min_size=1,
            max_size=5,
        )
    )
    pauses = data.draw(st.lists(st.integers(0, 3), min_size=len(trials), max_size=len(trials)))

    async def does(hand, task):
        return await (fates.pop() if fates else works)(hand, task)

    def starts(number):
        if number in bad_starts:
            raise LostError("no")
        return {}

    async def scenario():
        async with keeping(Crew(does=does, starts=starts), tmp_path_factory.mktemp("units"), workers=2) as keeper:
            asked = []
            for order, (places, words, _) in enumerate(trials):
                tasks = [batches(6, **({} if words else {"prompt": "fpp"}))[place] for place in places]
                asked.append(asyncio.create_task(outcome(keeper.results(tasks, order))))
            for each, (_, _, cancelled), pause in zip(asked, trials, pauses, strict=True):
                await asyncio.sleep(pause * WORK)
                if cancelled:
                    each.cancel()
            found = await asyncio.gather(*asked, return_exceptions=True)
            for each, (places, _, cancelled) in zip(found, trials, strict=True):
                if isinstance(each, list):
                    assert [done.skipped for done in each] == [64] * len(places)
                else:
                    assert isinstance(each, str) or (cancelled and isinstance(each, asyncio.CancelledError)), each
            await until(lambda: not keeper._jobs and not keeper.status().queued)

    run(scenario)
