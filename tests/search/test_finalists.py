"""The final stage: its seeds and images, its finalists, and the order of its jobs."""

import shutil
from dataclasses import replace

import pytest

from fpp_sweep.records.front import front_of
from fpp_sweep.records.records import FINAL
from fpp_sweep.search.finalists import (
    FinalJobs,
    Job,
    chances_on,
    choose_champion,
    choose_finalists,
    fresh_images,
    later_plans,
)
from fpp_sweep.space.reading import parse_space
from fpp_sweep.space.work import Finalists
from fpp_sweep.spec.config import AdaptConfig, TrialConfig
from fpp_sweep.trial.trial import Plan
from tests.kit.measured import World, write_measured_sweep
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.tasks import dataset_info

SPACE = """
question: what?
params: {fpp.gamma1: {low: 1, high: 2}}
work: {datasets: [digits, scenes], baselines: [zero_shot, tpt], limit: 200}
"""


def describe_datasets_of_size(size):
    return lambda names, split: [dataset_info(name, split, size) for name in names]


def plan_with(size=200, seeds=(0,)):
    datasets = {
        split: tuple(dataset_info(name, split, size) for name in ("digits", "scenes")) for split in ("val", "test")
    }
    return Plan(datasets=datasets, seeds=seeds)


@pytest.mark.parametrize(
    ("used", "available", "images", "expected"),
    [
        (200, 1000, None, (200, 400)),
        (200, 300, None, (200, 300)),  # fewer images are left than the search used
        (200, 1000, 500, (200, 700)),
        (200, 200, None, None),
        (200, 230, None, None),  # fewer images are left than a batch has
        (200, 1000, 50, (200, 250)),  # fewer than a batch, as requested
    ],
)
def test_fresh_images_follow_those_of_the_search(used, available, images, expected):
    image_range = fresh_images(Finalists(images=images), {"a": used, "b": used}, {"a": available, "b": available + 7})
    assert (None if image_range is None else (image_range.start, image_range.stop)) == expected


def test_further_seeds_draw_the_pretraining_and_keep_the_views():
    space = parse_space(SPACE, "space.yaml")
    plans = later_plans(plan_with(), space, describe_datasets_of_size(400))
    final = plans[FINAL]
    config = TrialConfig(prompt="fpp", method="tpt")
    tasks = [task for tasks in final.tasks(config, FINAL).values() for task in tasks]
    assert {(task.seed, task.prompt_seed) for task in tasks} == {(0, 1), (0, 2), (0, 3)}
    assert {(task.start, task.stop, task.split) for task in tasks} == {(200, 400, "val:400")}
    tested = [task for tasks in plans["test"].tasks(config, "test").values() for task in tasks]
    assert {(task.seed, task.prompt_seed) for task in tested} == {(0, 4), (0, 5), (0, 6)}
    assert {(task.start, task.stop) for task in tested} == {(0, 200)}


@pytest.mark.parametrize(
    ("order", "prompt", "seeds"),
    [
        ("shuffled", "a photo of a", {(1, 1), (2, 2), (3, 3)}),
        ("shuffled", "fpp", {(1, 1), (2, 2), (3, 3)}),
        ("fair", "a photo of a", {(0, 0)}),
        ("fair", "fpp", {(0, 1), (0, 2), (0, 3)}),
    ],
)
def test_further_seeds_draw_the_order_of_a_stream(order, prompt, seeds):
    """One order may be a lucky one. The first of the two seeds draws the order, the second the pretraining."""
    space = parse_space(SPACE, "space.yaml")
    plan = plan_with()
    whole = replace(plan, later=later_plans(plan, space, describe_datasets_of_size(400)))
    config = TrialConfig(prompt=prompt, method="tda", adapt=AdaptConfig(order=order))
    tasks = whole.on(FINAL, config).tasks(config, FINAL)
    assert {(task.seed, task.prompt_seed) for shards in tasks.values() for task in shards} == seeds


def test_the_test_split_has_seeds_that_no_earlier_stage_had():
    """The final stage chooses three finalists by their luck with its seeds."""
    space = parse_space(SPACE, "space.yaml", ["search.finalists={seeds: 2}", "work.seeds=[0, 2]"])
    plans = later_plans(plan_with(seeds=(0, 2)), space, describe_datasets_of_size(400))
    assert {split: plan.seeds for split, plan in plans.items()} == {FINAL: (1, 3), "test": (4, 5)}
    on_test = parse_space(SPACE, "space.yaml", ["search.split=test"])
    assert later_plans(plan_with(), on_test, describe_datasets_of_size(400)).keys() == {FINAL}


def test_more_images_of_the_final_stage_are_more_of_the_test_split():
    space = parse_space(SPACE, "space.yaml", ["search.finalists.images=400", "work.limit=200"])
    plan = plan_with()
    before = {info.name: info.size for info in plan.datasets["test"]}
    later = later_plans(plan, space, describe_datasets_of_size(400))["test"]
    assert all(info.size == 400 > before[info.name] for info in later.datasets["test"])
    assert later_plans(plan, space, describe_datasets_of_size(50))["test"].datasets["test"] == plan.datasets["test"]


def test_one_seed_turns_the_final_stage_off():
    space = parse_space(SPACE, "space.yaml", ["search.finalists={seeds: 1}"])
    assert later_plans(plan_with(), space, describe_datasets_of_size(400)) == {}


def test_a_stateful_method_keeps_its_stream_from_the_beginning():
    space = parse_space(SPACE, "space.yaml", ["base.method=dynaprompt"])
    assert later_plans(plan_with(), space, describe_datasets_of_size(400))[FINAL].ranges == {}


# --- the choice of finalists ------------------------------------------------------------------------

SIDES = {
    ZERO_SHOT: (0.60, 0.10),
    TPT: (0.61, 0.12),
    "trial-0002": (0.62, 0.08),  # on the front
    "trial-0003": (0.618, 0.081),  # cannot be distinguished from the front
    "trial-0004": (0.50, 0.00),  # well calibrated, but far below zero-shot
}


@pytest.fixture
def searched_folder(tmp_path):
    return write_measured_sweep(tmp_path / "sweep", World(1000, seed=5), SIDES)


def front_in(folder):
    return front_of(folder.info(), folder.trials())


def test_the_front_and_its_rivals_are_finalists_and_no_trial_below_the_floor(searched_folder):
    finalists = choose_finalists(searched_folder, front_in(searched_folder), 6)
    assert [record.name for record in finalists] == ["trial-0002", "trial-0003"]


def test_there_are_at_most_as_many_finalists_as_asked_for(searched_folder):
    assert [record.name for record in choose_finalists(searched_folder, front_in(searched_folder), 1)] == ["trial-0002"]


def test_a_trial_with_a_baselines_settings_is_no_finalist(searched_folder):
    trial = searched_folder.trial("trial-0003")
    searched_folder.write_trial(replace(trial, key=searched_folder.trial(f"baseline-{TPT}").key))
    assert [record.name for record in choose_finalists(searched_folder, front_in(searched_folder), 6)] == ["trial-0002"]


@pytest.mark.parametrize("overrides", [[], ["search.finalists={seeds: 1}"]])
def test_of_trials_with_equal_settings_one_runs_after_the_search(searched_folder, overrides):
    for number in (6, 7):
        repeated = replace(searched_folder.trial("trial-0002"), name=f"trial-{number:04d}", number=number)
        searched_folder.write_trial(repeated)
        shutil.copytree(searched_folder.artifacts("trial-0002"), searched_folder.artifacts(repeated.name))
    jobs = Jobs(searched_folder, *overrides).run_all()
    names = [name for name, split in jobs if split == "test" and name.startswith("trial")]
    assert names == ["trial-0002"]


def test_a_trial_that_breaks_a_constraint_is_no_finalist(searched_folder):
    trial = searched_folder.trial("trial-0003")
    searched_folder.write_trial(replace(trial, constraints={"seconds": 1.0}))
    assert [record.name for record in choose_finalists(searched_folder, front_in(searched_folder), 6)] == ["trial-0002"]


def stats_of(folder, name):
    return folder.artifacts(name) / "val" / "block_stats.npz"


def test_a_front_member_without_statistics_remains_a_finalist(searched_folder):
    stats_of(searched_folder, "trial-0002").unlink()
    finalists = choose_finalists(searched_folder, front_in(searched_folder), 6)
    assert "trial-0002" in [record.name for record in finalists]


def test_copies_of_a_trial_are_no_finalists(searched_folder):
    """Other settings with the same results on every dataset, such as of a setting without effect."""
    of_first = searched_folder.trial("trial-0002")
    copied = replace(searched_folder.trial("trial-0003"), results=of_first.results, values=of_first.values)
    searched_folder.write_trial(copied)
    shutil.copy(stats_of(searched_folder, "trial-0002"), stats_of(searched_folder, "trial-0003"))
    assert [record.name for record in choose_finalists(searched_folder, front_in(searched_folder), 6)] == ["trial-0002"]


def test_a_trial_with_the_predictions_of_zero_shot_has_no_gain(searched_folder):
    """Its differences have no standard error, by which the t statistic divides."""
    zero_shot = searched_folder.trial(f"baseline-{ZERO_SHOT}")
    shutil.copy(stats_of(searched_folder, zero_shot.name), stats_of(searched_folder, "trial-0002"))
    same = replace(searched_folder.trial("trial-0002"), results=zero_shot.results)
    assert chances_on(searched_folder, front_in(searched_folder), [same], "val") == {"trial-0002": (0.0, 0.0)}


def test_a_search_whose_trials_are_all_below_the_floor_ends_with_the_baselines_on_test(tmp_path):
    sides = {ZERO_SHOT: (0.60, 0.10), TPT: (0.61, 0.12), "trial-0002": (0.50, 0.0)}
    folder = write_measured_sweep(tmp_path / "sweep", World(1000), sides)
    assert Jobs(folder).run_all() == [(f"baseline-{ZERO_SHOT}", "test"), (f"baseline-{TPT}", "test")]
    assert front_in(folder).why_empty == "all finished trials are more than 5 points below zero_shot"


def test_a_finalist_that_breaks_a_constraint_in_the_final_stage_is_tested_only_if_all_do(tmp_path):
    """It is clearly ahead of the finalist that keeps the constraint, and could not be recommended."""
    sides = {ZERO_SHOT: (0.60, 0.1), "trial-0002": (0.62, 0.01), "trial-0003": (0.61, 0.2)}
    folder = write_measured_sweep(tmp_path / "sweep", World(1000), sides, ("val", FINAL), seeds=(0, 1, 2))
    finalists = []
    for name, value in (("trial-0002", 2.0), ("trial-0003", 1.0)):
        record = folder.trial(name)
        final = record.results[FINAL]
        final = replace(final, average=final.average | {"nll": value})
        finalists.append(replace(record, results=record.results | {FINAL: final}))
    tested = []
    for bound in (1.5, 0.5):
        constraint = {"name": "nll", "metric": "nll", "at_most": bound}
        info = folder.info()
        folder.write_info(replace(info, space=dict(info.space) | {"constraints": [constraint]}))
        chosen = choose_champion(folder, front_in(folder), finalists)
        tested.append([record.name for record in chosen])
    assert tested == [["trial-0003"], ["trial-0002"]]


def test_a_finalist_whose_seeds_collapse_is_no_champion(tmp_path):
    """It has the best mean, but its seeds differ so much that it may be worse than zero-shot."""
    sides = {ZERO_SHOT: (0.60, 0.1), "trial-0002": (0.66, 0.05), "trial-0003": (0.62, 0.05), "trial-0004": (0.60, 0.08)}
    shifts = {"trial-0002": (0.1, 0.05, -0.15)}
    world = World(1000)
    folder = write_measured_sweep(tmp_path / "sweep", world, sides, ("val", FINAL), seeds=(0, 1, 2), shifts=shifts)
    finalists = [folder.trial(name) for name in ("trial-0002", "trial-0003", "trial-0004")]
    assert [record.name for record in choose_champion(folder, front_in(folder), finalists)] == ["trial-0003"]


# --- the jobs ---------------------------------------------------------------------------------------


class Jobs:
    """The jobs of a sweep, run one by one."""

    def __init__(self, folder, *overrides):
        self.folder = folder
        self.space = parse_space(SPACE, "space.yaml", overrides)
        self.jobs = FinalJobs(self.space, folder)

    def next(self, running=()):
        records = {record.name: record for record in self.folder.trials()}
        return self.jobs.next(records, running)

    def finish(self, name, split):
        record = self.folder.trial(name)
        self.folder.write_trial(replace(record, results={**record.results, split: record.results["val"]}))
        stats = self.folder.artifacts(name) / "val" / "block_stats.npz"
        target = self.folder.artifacts(name) / split / "block_stats.npz"
        target.parent.mkdir()
        target.write_bytes(stats.read_bytes())

    def run_all(self):
        done = []
        while job := self.next():
            self.finish(*job)
            done.append(job)
        return done


def test_baselines_are_tested_then_finalists_run_beside_their_references_then_the_champion_is_tested(searched_folder):
    baselines = [(f"baseline-{ZERO_SHOT}", "test"), (f"baseline-{TPT}", "test")]
    references = [(f"baseline-{ZERO_SHOT}", FINAL), (f"baseline-{TPT}", FINAL)]
    finalists = [("trial-0002", FINAL), ("trial-0003", FINAL)]
    assert Jobs(searched_folder).run_all() == [*baselines, *references, *finalists, ("trial-0002", "test")]


def test_an_imported_baseline_does_not_run_after_the_search(searched_folder):
    """Its predictions come from a file; before, a resumed sweep ran it in the final stage, and it failed."""
    for record in searched_folder.trials():
        if record.kind == "baseline":
            searched_folder.write_trial(replace(record, origin="imported"))
    names = [name for name, _ in Jobs(searched_folder, "work.baselines=[]").run_all()]
    assert set(names) == {"trial-0002", "trial-0003"}


def test_a_record_has_one_running_job_at_a_time(searched_folder):
    """Each job writes the whole record: of two at once, the second to end would erase the result of the first."""
    jobs = Jobs(searched_folder)
    running = [jobs.next()]
    while job := jobs.next(running):
        running.append(job)
    assert running == [
        (f"baseline-{ZERO_SHOT}", "test"),
        (f"baseline-{TPT}", "test"),
        ("trial-0002", FINAL),
        ("trial-0003", FINAL),
    ]
    jobs.finish(*running.pop(0))
    assert jobs.next(running) == (f"baseline-{ZERO_SHOT}", FINAL)


def test_no_trial_is_tested_while_a_finalist_runs(searched_folder):
    jobs = Jobs(searched_folder)
    started = [jobs.next() for _ in range(6)]
    assert jobs.next(running=started[2:]) is None
    for position in (2, 3, 4):
        jobs.finish(*started[position])
        assert jobs.next(running=started[position + 1 :]) is None
    jobs.finish(*started[5])
    assert jobs.next() == ("trial-0002", "test")


def test_a_failed_finalist_is_neither_tested_nor_started_again(searched_folder):
    jobs = Jobs(searched_folder)
    started = [jobs.next() for _ in range(6)]
    for job in started[2:4] + started[5:]:
        jobs.finish(*job)  # the first finalist leaves no result
    assert jobs.next() == ("trial-0003", "test")
    assert jobs.next() is None


def test_a_resumed_driver_runs_only_the_remaining_jobs(searched_folder):
    first = Jobs(searched_folder)
    for _ in range(5):
        job = first.next()
        first.finish(*job)
    assert Jobs(searched_folder).run_all() == [("trial-0003", FINAL), ("trial-0002", "test")]


def test_a_search_on_the_test_split_ends_with_the_final_stage(tmp_path):
    folder = write_measured_sweep(tmp_path / "sweep", World(1000, seed=5), SIDES)
    jobs = Jobs(folder, "search.split=test").run_all()
    names = [f"baseline-{TPT}", f"baseline-{ZERO_SHOT}", "trial-0002", "trial-0003"]
    assert sorted(jobs) == [(name, FINAL) for name in names]
    assert Jobs(folder, "search.split=test", "search.finalists={seeds: 1}").run_all() == []


def test_a_raised_budget_starts_the_choice_of_finalists_again(searched_folder):
    jobs = Jobs(searched_folder)
    jobs.run_all()
    jobs.jobs.reset(jobs.space)
    assert jobs.next(running=[Job("trial-0009", "val")]) is None
    assert jobs.next() is None  # every job has a result already
