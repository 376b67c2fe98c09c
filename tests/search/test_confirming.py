"""Confirmation: who runs again on what, when it ends, and what is said of it; of made-up sums and draws."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fpp_sweep.core.datasets.sample_order import fair_order
from fpp_sweep.core.metrics import Confidences
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import CONFIRMED
from fpp_sweep.search.confirming import ENOUGH, Confirmation, Standing, price, rounds
from fpp_sweep.space.reading import parse_space
from fpp_sweep.space.work import Confirm
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import written_whole
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.statistics.block_stats import ADDITIVE, BlockStats, packed, united, value_of
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.plan import make_plan
from fpp_sweep.sweep.preflight import check_before_start
from fpp_sweep.trial.artifacts import SUMS
from fpp_sweep.trial.trial import Plan, Round
from tests.names import PLAIN, TPT, named
from tests.report.worlds import World, mean, write
from tests.trial.conftest import make_worker  # noqa: F401 - a fixture
from tests.trial.made import facts

# ------------------------------------------------------------ numbers


def standing(*means, sd=0.5, draws=4000):
    """Trials by number, with draws around their (accuracy, minus ece)."""
    noise = np.random.default_rng(0).normal(0, sd, (2, len(means), draws))
    noise -= noise.mean(axis=2, keepdims=True)
    return Standing([f"t{number}" for number in range(len(means))], np.array(means, float).T[:, :, None] + noise)


def test_regret_is_what_the_best_of_a_draw_is_ahead_of_the_chosen_in_the_mean():
    # of two equal trials the better of a draw is ahead of either by sd / sqrt(pi), half the time by twice of it
    assert standing((70, -5), (70.0001, -5)).regret == pytest.approx([0.5 / np.sqrt(np.pi)] * 2, rel=0.05)
    assert standing((70, -5), (80, -15)).regret == [0, 0]
    assert standing((70, -5)).regret == [0, 0]
    wide, narrow = (standing((70, -5), (70.2, -5), sd=sd).regret[0] for sd in (1.0, 0.1))
    assert wide > narrow > 0


def test_candidates_are_the_front_and_whoever_may_be_on_it_the_best_first():
    made = standing((70, -5), (69.8, -5.2), (72, -9), (60, -15), (69.9, -5.1))
    assert made.front == ["t2", "t0"] or made.front == ["t0", "t2"]
    assert made.best == ["t2", "t0"]
    assert set(made.candidates(8)) == {"t0", "t1", "t2", "t4"}  # t3 is unlikely
    assert made.candidates(2) == sorted(["t0", "t2"], key=lambda name: -made.support[name])
    assert made.candidates(3)[2] == "t4"  # more likely than t1


def test_rounds_are_of_fresh_images_then_of_seeds():
    sizes = {"scenes": (100, 1000), "digits": (100, 250)}
    assert rounds(Confirm(), "val", (0,), sizes) == [Round((100, 200), (0,))]
    assert rounds(Confirm(images=50), "val", (0, 1), sizes) == [
        Round((100, 150), (0, 1)),
        Round((100, 150, 200), (0, 1)),
        Round((100, 150, 200, 250), (0, 1)),
    ]
    assert len(rounds(Confirm(images=5), "val", (0,), sizes)) == 4
    # what is left makes a round, if it is a batch
    assert rounds(Confirm(), "val", (0,), {"a": (100, 180)}) == [Round((100, 180), (0,))]
    with_seeds = rounds(Confirm(seeds=2), "val", (0, 3), sizes)
    assert [one.seeds for one in with_seeds] == [(0, 3), (0, 3, 4), (0, 3, 4, 5)]
    assert {one.edges for one in with_seeds} == {(100, 200)}
    # without fresh images the same ones, with other seeds than theirs
    full = {"scenes": (100, 100), "digits": (80, 80)}
    assert rounds(Confirm(seeds=2), "val", (0,), full) == [Round((), (1,)), Round((), (1, 2))]


@pytest.mark.parametrize(
    ("confirm", "size", "told"),
    [
        (Confirm(), (400, 400), "scenes has 400 images in split val, and work.limit takes them all"),
        (Confirm(), (400, 430), "takes all but 30, fewer than the 400 of a round"),
        (Confirm(images=50), (100, 149), "scenes has 149 images in split val, and work.limit takes all but 49"),
    ],
)
def test_without_anything_fresh_there_is_nothing_to_confirm_on(confirm, size, told):
    with pytest.raises(InputError, match=rf"{told}.*: lower it, or give search\.confirm\.seeds"):
        rounds(confirm, "val", (0,), {"scenes": size, "digits": (400, 4000)})


def test_a_round_costs_adapting_and_views_by_whole_chunks_once_for_who_looks_at_the_same(tmp_path):
    folder = write(SweepFolder(tmp_path / "sweep"), World(100), {"trial-0001": (0.6, 0.1)})
    record = folder.trial("trial-0001")

    def taking(config, **costs):
        result = replace(record.results["val"], costs=costs)
        return replace(record, config=TrialConfig().replace(config).flat(), results={"val": result})

    records = {
        "first": taking({"method": "tpt"}, digits={"pretrain": 8.0, "features": 10.0, "adapt": 2.0}),
        "same": taking({"method": "ctpt"}, digits={"adapt": 2.0}, scenes={"adapt": 2.0}),
        "plain": taking({"method": "zero_shot"}, digits={"features": 1.0}, scenes={"features": 1.0}),
        "half": taking({"method": "tpt", "precision": "fp16"}, digits={"features": 5.0}),
    }
    searched = (facts("digits", "val", 100), facts("scenes", "val", 100))
    there = (facts("digits", "val:500", 140), facts("scenes", "val:500", 500))
    plan = Plan(datasets={"val": searched, CONFIRMED: there}, seeds=(0,))
    first, second, seeds = Round((100, 120), (0,)), Round((100, 120, 140), (0,)), Round((100, 120, 140), (0, 1))

    def cost(names, *rounds):
        return price(records, names, plan, "val", rounds)

    none = Round((), ())
    # 100 to 120 are among 64 to 128, drawn together; 120 to 140 need those from 128 on, of which digits has 12
    assert cost(["first"], none, first) == pytest.approx(2 * 0.2 + 10 * 0.64)
    assert cost(["same"], none, first) == pytest.approx(4 * 0.2 + 10 * 0.64)  # as who drew them in the search
    assert cost(["first", "same"], none, first) == pytest.approx(6 * 0.2 + 10 * 0.64)
    assert cost(["plain"], none, first) == pytest.approx(2 * 0.64)  # one view
    assert cost(["first", "half", "plain"], none, first) == pytest.approx(2 * 0.2 + (10 + 5 + 2) * 0.64)
    assert cost(["first"], first, second) == pytest.approx(2 * 0.2 + 10 * (12 + 64) / 200)
    assert cost(["first"], second, seeds) == pytest.approx(2 * 0.4 + 10 * (76 + 128) / 200 + 8)
    # other seeds over the search's images
    plan = replace(plan, datasets={"val": searched, CONFIRMED: searched})
    assert cost(["first"], none, Round((), (1,))) == pytest.approx(2 + 10 + 8)


def test_united_sums_are_those_of_all_images():
    generator = np.random.default_rng(0)
    given = Confidences(generator.random(300).astype(np.float32), generator.random(300) < 0.6)
    losses = generator.random(300)
    ids = [f"image {number}" for number in range(300)]
    first = fair_order("digits", ids)[0]
    parts = []
    for part in (first[:100], first[100:]):
        chosen = Confidences(given.confidence[part], given.correct[part])
        parts.append(
            {("digits", 0): BlockStats.of("digits", [ids[i] for i in part], chosen, losses[part], losses[part])}
        )
    whole = BlockStats.of("digits", ids, given, losses, losses)
    (joined,) = united(*parts).values()
    for metric in ADDITIVE:
        assert value_of(metric, joined) == pytest.approx(value_of(metric, whole), abs=1e-9), metric
    assert joined.total == 300
    other = {("digits", 1): parts[0]["digits", 0]}
    assert united(parts[0], other).keys() == {("digits", 0), ("digits", 1)}
    both = {**parts[1], ("digits", 1): parts[1]["digits", 0]}
    assert united(parts[0], both) is both


# ------------------------------------------------------------ a sweep's decisions

SPACE = named("""
params: {fpp.gamma1: {low: 0.1, high: 10, log: true}}
search: {trials: 4, confirm: {top: 3}}
work: {datasets: [scenes], limit: 200, baselines: [zero_shot, tpt]}
""")
# three of one kind, one that is far off, and baselines, one of which the other beats
SIDES = {PLAIN: (0.55, 0.20), TPT: (0.56, 0.15), "trial-0001": (0.605, 0.090), "trial-0002": (0.600, 0.092),
         "trial-0003": (0.606, 0.093), "trial-0004": (0.45, 0.30)}  # fmt: skip


class Confirming:
    """A sweep whose search is over; what runs again is made up."""

    def __init__(self, path, *overrides, sides=SIDES, adapt=1.0, features=0.0):
        self.space = parse_space(SPACE, "space.yaml", overrides)
        self.sides, self.world = sides, World(200)
        self.folder = write(SweepFolder(path), self.world, sides)
        for record in self.folder.trials():
            costs = {"digits": {"adapt": adapt, "features": features * (record.label == TPT)}}
            result = replace(record.results["val"], costs=costs, device_seconds=adapt, samples=400)
            self.folder.write_trial(replace(record, results={"val": result}))
        known = (facts("digits", "val", 200), facts("scenes", "val", 200))
        found = rounds(self.space.search.confirm, "val", (0,), {"scenes": (200, 1000)})
        there = tuple(replace(one, split="val:1000", size=1000) for one in known)
        self.plan = Plan(datasets={"val": known, CONFIRMED: there}, seeds=(0,), rounds=tuple(found))
        self.open()

    def open(self):
        self.confirmation = Confirmation(self.space.search.confirm, self.space, self.folder, self.plan)

    @property
    def steps(self):
        return json.loads((self.folder.path / "confirm.json").read_text())["steps"]

    def round(self, seconds=0.25):
        """Who runs in it, one after the other; each gets a result on all images so far."""
        before, ran = len(self.confirmation.steps), []
        while len(ran) < self.left(before) and (name := self.confirmation.next([])):
            ran.append(name)
            self.end(name, seconds)
        return ran

    def left(self, before):
        """Jobs of the round that follows."""
        steps = self.confirmation.steps
        return len(steps[-1].trials) + len(steps[-1].baselines) if len(steps) > before else 1

    def end(self, name, seconds=0.25):
        record = self.folder.trial(name)
        edges = self.confirmation.round.edges
        before = record.results[CONFIRMED].device_seconds if CONFIRMED in record.results else 0.0
        world = World(edges[-1] - edges[0], seed=7)
        table = world.sums(*self.sides[record.label])
        average = mean([{metric: value_of(metric, one) for metric in ADDITIVE} for one in table.values()])
        result = replace(
            record.results["val"], average=average, samples=2 * world.images, device_seconds=before + seconds
        )
        self.folder.write_trial(replace(record, results={**record.results, CONFIRMED: result}))
        with written_whole(self.folder.artifacts(name) / CONFIRMED / SUMS) as partial:
            partial.write_bytes(packed(table))


@pytest.fixture
def sweep(tmp_path):
    return Confirming(tmp_path / "sweep", "search.confirm={top: 3, images: 50}")


def test_the_front_and_its_rivals_run_with_the_best_baseline_the_least_certain_first(sweep):
    first = sweep.confirmation.next([])
    (step,) = sweep.steps
    assert set(step["trials"]) == {"trial-0001", "trial-0002", "trial-0003"}
    assert step["trials"] == sorted(step["trials"], key=lambda name: abs(step["support"][name] - 0.5))
    assert first == step["trials"][0]
    assert step["baselines"] == [f"baseline-{TPT}"]  # it beats the other
    assert len(step["regret"]) == 2
    assert max(step["regret"]) > ENOUGH


def test_decisions_are_written_before_anybody_acts_and_are_not_taken_again(sweep):
    ran = [sweep.confirmation.next([]), sweep.confirmation.next(["somebody"])]
    (step,) = sweep.steps
    assert set(step["late"]) == {*step["trials"], *step["baselines"]} - set(ran)  # who runs is on record before
    sweep.open()  # as after a kill: who had begun runs again, its tasks are at hand
    assert [sweep.confirmation.next([]), sweep.confirmation.next([])] == ran
    assert sweep.steps == [step]
    assert sweep.confirmation.next(ran) not in (None, *ran)
    assert sweep.confirmation.next(ran) not in (None, *ran)
    assert sweep.confirmation.next(ran) is None  # the round is not over
    assert sweep.steps == [{**step, "late": []}]
    sweep.space = parse_space(SPACE, "space.yaml", ["search.confirm={top: 2}"])
    sweep.open()
    assert sweep.confirmation.steps == []


def test_what_is_spent_is_spent_also_for_a_driver_that_was_killed_in_between(sweep):
    # a quarter of six runs is 1.5 seconds; the first takes four times as long as was expected
    first, second = sweep.confirmation.next([]), sweep.confirmation.next(["somebody"])
    sweep.end(first, 1.0)
    sweep.end(second, 0.4)
    third = sweep.confirmation.next([])
    assert third
    last = sweep.steps[0]["late"]
    sweep.end(third, 0.4)
    sweep.open()
    for name in (first, second, third):  # at hand, though nothing may begin any more
        assert sweep.confirmation.next([]) == name
        sweep.end(name, 0.0)
    assert sweep.confirmation.next([]) is None
    *_, step = sweep.steps
    assert step["ended"] == "a quarter of the search's device time is spent"
    assert step["spent"] == pytest.approx(1.8)
    assert sweep.steps[0]["late"] == last == [f"baseline-{TPT}"]
    assert set(step["best"]) <= {first, second, third}
    told = sweep.confirmation.told()
    assert f"30% of the search's device time; not begun in the last round: baseline-{TPT}; ended as a quarter" in told
    assert sweep.confirmation.tested(["trial-0004"]) == ["trial-0004", *step["front"]]
    sweep.open()
    assert sweep.confirmation.next([]) is None
    assert sweep.steps[-1] == step


def test_who_runs_is_taken_at_its_share_before_more_are_begun(tmp_path):
    # a run of 100 images is expected to take half a second: of 1.5 there is room for it beside one, and not beside two
    sweep = Confirming(tmp_path / "sweep", "search.confirm={top: 3, images: 100}")
    first, second = sweep.confirmation.next([]), sweep.confirmation.next(["somebody"])
    sweep.end(first, 0.6)
    assert sweep.confirmation.next([second, "another"]) is None
    assert sweep.steps[0]["late"]
    assert sweep.confirmation.next([second]) not in (None, first, second)


def test_a_round_in_which_one_runs_alone_says_nothing_of_the_others(tmp_path):
    sweep = Confirming(tmp_path / "sweep", "search.confirm={top: 3, images: 50}")
    sweep.end(first := sweep.confirmation.next([]), 2.0)
    assert sweep.confirmation.next([]) is None
    assert sweep.confirmation.told() == "nothing: a quarter of the search's device time is spent"
    assert sweep.confirmation.tested(["trial-0001"]) == ["trial-0001"]
    later = Confirming(tmp_path / "later", "search.confirm={top: 3, images: 10}")
    assert len(later.round(0.05)) == 4
    sweep, first = later, later.confirmation.next([])
    sweep.end(first, 2.0)
    assert sweep.confirmation.next([]) is None
    known, last = sweep.steps[1:]
    assert [last[key] for key in ("best", "front", "regret")] == [known[key] for key in ("best", "front", "regret")]
    assert last["left"] == []


def test_who_has_not_begun_has_not_left(sweep):
    for _ in range(2):
        sweep.end(sweep.confirmation.next([]), 0.8)
    third = sweep.steps[0]["late"][0]
    assert third.startswith("trial-")
    assert sweep.confirmation.next([]) is None
    assert (sweep.steps[-1]["left"], third in sweep.steps[-1]["support"]) == ([], False)
    assert third in sweep.confirmation.tested([third])


def test_another_round_is_expected_at_the_pace_of_those_before(tmp_path):
    sweep = Confirming(tmp_path / "sweep", "search.confirm={top: 3, images: 10}")
    sweep.round(0.1)
    sweep.confirmation.next([])
    first, second = sweep.steps
    assert first["seconds"] == pytest.approx(4 * 0.05)
    assert (second["spent"], second["seconds"]) == (pytest.approx(0.4), pytest.approx(4 * 0.1))


def test_trials_that_have_finished_since_may_join_and_what_has_run_is_at_hand(sweep):
    assert len(sweep.round(0.3)) == 4
    assert sweep.confirmation.next([]) is None
    assert len(sweep.steps) == 2
    first = sweep.folder.trial("trial-0001")
    results = {"val": first.results["val"]}
    sweep.folder.write_trial(replace(first, name="trial-0005", number=5, results=results, values=[90.0, 1.0]))
    with written_whole(sweep.folder.artifacts("trial-0005") / "val" / SUMS) as partial:
        partial.write_bytes(packed(sweep.world.sums(0.66, 0.05)))
    sweep.open()
    assert sweep.confirmation.next([])
    (step,) = sweep.steps
    assert "trial-0005" in step["trials"]
    assert (step["finished"], step["spent"]) == (5, pytest.approx(1.2))  # what was spent before is not spent again
    assert sweep.confirmation.told() == "nothing: the sweep was stopped"


def test_it_ends_when_a_quarter_of_the_search_is_spent_or_its_rounds_are_over(tmp_path, sweep):
    # a round of 50 images is a quarter of four runs' 200; a quarter of the search's six runs is 1.5 of them
    assert len(sweep.round()) == 4
    sweep.round()
    assert [step["seconds"] for step in sweep.steps] == [1.0, 0.0]
    assert sweep.steps[-1]["ended"] == "another round would go beyond a quarter of the search's device time"
    assert sweep.confirmation.next([]) is None
    sweep.open()
    assert sweep.confirmation.next([]) is None  # nor later

    small = Confirming(tmp_path / "small", "search.confirm={top: 3, images: 2}")
    for _ in range(6):
        small.round(0.01)
    assert small.steps[-1]["ended"] == "no round is left"
    assert len(small.steps) == 5


def test_a_round_that_cannot_be_paid_for_has_fewer_images_or_is_none(tmp_path):
    # two of them and the baseline on 200 images are more than 1.5 runs, on 100 they are as much
    large = Confirming(tmp_path / "large", "search.confirm={top: 3, images: 200}")
    assert len(large.round()) == 3
    assert large.steps[0]["images"] == 100
    assert large.confirmation.round == Round((200, 300), (0,))
    large.open()
    assert large.confirmation.round == Round((200, 300), (0,))

    # views are drawn by 64 images, however few are looked at
    dear = Confirming(tmp_path / "dear", "search.confirm={top: 3, images: 200}", features=30.0)
    assert dear.round() == []
    assert dear.steps[0]["images"] == 12
    assert dear.confirmation.told() == "nothing: a round would go beyond a quarter of the search's device time"


def test_as_many_run_as_a_quarter_of_the_search_pays_for(tmp_path):
    # two and the baseline on 100 images are 1.5 runs of 200, three would be 2
    sweep = Confirming(tmp_path / "sweep", "search.confirm={top: 3, images: 100}")
    assert len(sweep.round()) == 3
    assert len(sweep.steps[0]["support"]) == 2  # regret and support are among those that run


def test_it_ends_when_little_is_to_be_regretted_and_whoever_is_unlikely_leaves(tmp_path):
    sides = {PLAIN: (0.55, 0.20), "trial-0001": (0.62, 0.06), "trial-0002": (0.60, 0.075), "trial-0003": (0.61, 0.068)}
    sweep = Confirming(tmp_path / "sweep", "search.confirm={top: 3, images: 10}", sides=sides)
    for record in sweep.folder.trials():  # two that looked as good in the search
        if record.kind == "trial":
            path = sweep.folder.artifacts(record.name) / "val" / SUMS
            path.write_bytes(packed(sweep.world.sums(0.61 + 0.001 * record.number, 0.068)))
    assert len(sweep.round()) == 4
    (step,) = sweep.folder.steps()
    sweep.folder.write_steps([replace(step, images=4000)])
    sweep.open()
    for _ in range(4):
        sweep.end(sweep.confirmation.next([]), 0.0)
    assert sweep.confirmation.next([]) is None
    step = sweep.steps[-1]
    assert step["ended"] == "the expected regret is under 0.1 points in every objective"
    assert max(step["regret"]) < ENOUGH
    assert step["best"] == ["trial-0001"] * 2
    assert step["front"] == ["trial-0001"]
    assert set(step["left"]) == {"trial-0002", "trial-0003"}
    # the test split is for who has not left, also for a rival that is not on the front by the search
    assert sweep.confirmation.tested(["trial-0002", "trial-0004"]) == ["trial-0004", "trial-0001"]
    told = sweep.confirmation.told()
    record = sweep.folder.trial("trial-0001").results[CONFIRMED]
    assert told.startswith(
        f"on 4000 fresh images of each dataset: trial-0001 best accuracy {record.average['accuracy']:.2f} ["
    )
    assert f", best ece {record.average['ece']:.2f} [" in told  # of so many images an interval is honest
    assert "points; 1 round, 25% of the search's device time; left: trial-000" in told


@pytest.mark.parametrize("fails_in", [1, 2])
def test_a_trial_without_a_result_leaves_and_the_others_go_on(tmp_path, fails_in):
    sweep = Confirming(tmp_path / "sweep", "search.confirm={top: 3, images: 2}")
    for number in (1, 2)[:fails_in]:
        ran = []
        while len(ran) < 4 and (name := sweep.confirmation.next([])):
            ran.append(name)
            if (name, number) != ("trial-0001", fails_in):
                sweep.end(name, 0.01)
        assert "trial-0001" in ran
    following = sweep.confirmation.next([])
    assert sweep.steps[-1]["left"] == ["trial-0001"]
    assert following in ("trial-0002", "trial-0003")


# ------------------------------------------------------------ what is asked for, and what is there


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["search.confirm={tops: 3}"], "search.confirm: unknown key 'tops'"),
        (["search.confirm={top: 1}"], "search.confirm.top: must be >= 2, got 1"),
        (["search.confirm={images: 0}"], "search.confirm.images: must be >= 1, got 0"),
        (["search.confirm=4"], "search.confirm: must be a mapping"),
        (
            [named("work.baselines=[dynaprompt]")],
            "search.confirm: dynaprompt learns from sample to sample, so that other images do not go on with the rest; "
            "leave confirm or the method out",
        ),
    ],
)
def test_wrong_settings_are_refused_with_their_key(overrides, problem):
    with pytest.raises(InputError) as error:
        parse_space(SPACE, "space.yaml", overrides)
    assert problem in str(error.value)


def test_switched_on_it_has_its_defaults():
    assert parse_space(SPACE, "space.yaml", ["search.confirm=true"]).search.confirm == Confirm(top=8)
    assert parse_space(SPACE, "space.yaml", ["search.confirm=false"]).search.confirm is None
    space = parse_space(SPACE, "space.yaml")
    assert not space.difference(parse_space(SPACE, "space.yaml", ["search.confirm=true"]))  # a sweep may go on with it


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["work.limit=1000"], "scenes has 1000 images in split val, and work.limit takes them all: lower it, or give "),
        (["objectives=[accuracy, seconds]"], "seconds has no paired differences; confirm accuracy, ece, "),
    ],
)
def test_what_cannot_be_confirmed_is_refused_before_ray_is_started(overrides, problem):
    with pytest.raises(InputError) as error:
        check_before_start(parse_space(SPACE, "space.yaml", overrides), Options())
    assert str(error.value).startswith(f"search.confirm: {problem}")
    check_before_start(parse_space(SPACE, "space.yaml", ["work.limit=1000", "search.confirm.seeds=1"]), Options())


def test_it_changes_no_task_of_the_search_and_takes_images_that_this_has_not_seen(make_worker):  # noqa: F811
    worker = make_worker(limit=100)
    with_it = parse_space(SPACE, "space.yaml", ["work.limit=100", "search.confirm={images: 70}"])
    without = parse_space(SPACE, "space.yaml", ["work.limit=100", "search.confirm=false"])
    plans = [make_plan(space, worker) for space in (with_it, without)]
    keys = [TaskKeys(worker.facts(), plan.known()) for plan in plans]
    config = with_it.baselines()[TPT]
    for split in ("val", "test"):
        tasks = [[task for shards in plan.tasks(config, split).values() for task in shards] for plan in plans]
        assert tasks[0] == tasks[1]
        assert [keys[0].of(task) for task in tasks[0]] == [keys[1].of(task) for task in tasks[1]]

    searched, fresh = worker.dataset("scenes", "val"), worker.dataset("scenes", "val:380")
    assert fresh.ids[:100] == searched.ids
    assert fresh.split == searched.split  # so that views are drawn as a larger limit would have them
    first, second = map(plans[0].of_round, plans[0].rounds[:2])
    cuts = [
        [(task.start, task.stop) for task in plan.tasks(config, CONFIRMED)["scenes", 0]] for plan in (first, second)
    ]
    assert cuts == [[(100, 170)], [(100, 170), (170, 240)]]
    tasks = [plan.tasks(config, CONFIRMED)["scenes", 0][0] for plan in (first, second)]
    assert keys[0].of(tasks[0]) == keys[0].of(tasks[1])  # at hand in the second round
