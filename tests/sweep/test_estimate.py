"""What `--dry-run` says is what a sweep does."""

import re
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fpp_sweep.core.images.reading import Reader
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.config import TrialConfig, relevant
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import ModelInfo
from fpp_sweep.spec.tasks import EvalTask, PretrainTask
from fpp_sweep.sweep import estimate, timing
from fpp_sweep.sweep.estimate import Expected, config_lines, cost_lines, dry_run, expected_configs, sample_point
from fpp_sweep.sweep.preflight import make_plan, worker_spec
from fpp_sweep.sweep.timing import Speed, measure
from fpp_sweep.trial.trial import Plan
from fpp_sweep.trial.worker import Worker
from tests.names import OTPT, PLAIN, TPT, named
from tests.trial.made import facts

SPACE = named("""
base: {fpp.steps: 3, views.count: 4, adapt.view_fraction: 0.5}
params:
  fpp.gamma1: {low: 0.1, high: 10, log: true}
  method: [tpt, otpt]
  adapt.penalty_weight: {low: 1, high: 30, when: {method: otpt}}
search: {trials: 6}
work: {datasets: [scenes, digits], limit: 100, baselines: [zero_shot, tpt], workers: 2}
""")
LEAN = named("""
base: {fpp.steps: 3, views.count: 4, adapt.view_fraction: 0.5}
params: {fpp.gamma1: {low: 0.1, high: 10, log: true}}
search: {trials: 6}
work: {datasets: [dtd], baselines: [zero_shot, tpt]}
""")
HERE: dict[str, Any] = {"device": "cpu", "arithmetic": "", "node": "here", "pid": 1, "seconds": 0.0}
MODEL = ModelInfo(name="none", digest="none", embedding_scale=1.0, **HERE)
SPEED = Speed(step=1.0, image=0.01, plain=0.001, begin=0.1, draw=0.004, tower=0.001)


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    return parse_space(SPACE, "space.yaml", [f"work.cache={tmp_path_factory.mktemp('cache')}"])


@pytest.fixture(scope="module")
def worker(space):
    return Worker(worker_spec(space, gpus=0.0))


def test_the_configs_are_those_of_the_sweep(space):
    configs = dict(expected_configs(space))
    queue = space.queue()
    assert list(configs)[:2] == [f"baseline-{PLAIN}", f"baseline-{TPT}"]
    assert len(configs) == 2 + 6
    for number, (_, values) in enumerate(queue):
        assert configs[f"trial-{number:04d}"] == space.resolve(values)


def test_sampled_points_are_in_the_space(space):
    import random

    draw = random.Random(0)
    points = [sample_point(space.searched(), draw) for _ in range(50)]
    assert all(0.1 <= point["fpp.gamma1"] <= 10 for point in points)
    assert {point["method"] for point in points} == {TPT, OTPT}
    assert all(("adapt.penalty_weight" in point) == (point["method"] == OTPT) for point in points)


def test_settings_that_nothing_reads_are_not_shown(space):
    configs = dict(expected_configs(space))
    assert not [
        key for key in relevant(configs[f"baseline-{PLAIN}"].flat()) if key.startswith(("fpp.", "adapt.", "views."))
    ]
    text = "\n".join(config_lines(space, configs))
    assert "fpp.steps=3" in text
    assert f"baseline-{TPT}: method={TPT}, prompt=a photo of a" in text


def test_tasks_are_counted_once_however_many_trials_share_them(space, worker):
    plan = make_plan(space, worker)
    configs = dict(expected_configs(space))
    keys = TaskKeys(MODEL, plan.known())
    lines = list(cost_lines([Expected(space, plan, configs)], dict.fromkeys(["scenes", "digits"], SPEED), 2, keys))
    tasks = {}
    for name, config in configs.items():
        for split in ("val", "test") if name.startswith("baseline") or name <= "trial-0003" else ("val",):
            for shards in plan.tasks(config, split).values():
                tasks |= {keys.of(task): task for task in (*shards, *shards[0].needs)}
    pretrainings = sum(isinstance(task, PretrainTask) for task in tasks.values())
    evaluations = sum(isinstance(task, EvalTask) for task in tasks.values())
    assert f"{pretrainings} pretrainings, {evaluations} evaluations" in lines[0]
    assert re.search(rf"pretraining {3 * pretrainings} s", lines[1])


RACE = "race: trials after the first {} adapt for {}% of this; 14% to 62% of that was saved elsewhere: {}% to {}%"
FACTS = {"val": (facts("dtd", "val", 100),), "test": (facts("dtd", "test", 60),)}
# powers and round numbers, so that each sum below can be taken apart
FIXED = Speed(step=0.5, image=0.02, plain=0.05, begin=1.0, draw=0.2, tower=0.02)


@pytest.mark.parametrize(
    ("overrides", "workers", "lines"),
    [
        # six prompts of 3 steps; on validation 8 configs, on test the 2 baselines and 4 of the front
        (
            [],
            1,
            [
                "tasks: 6 pretrainings, 14 evaluations of shards, 1160 images",
                # 160 plain images; 12 times set up, 1000 images adapted to; 1 and 4 views of 160 images, of 192 in
                # the image tower
                "worker time, measured here (CPU): pretraining 9 s, adaptation 40 s, image features 59 s "
                "(features once, less where cached)",
                "estimate: 1.8 min of CPU time, 2.2 min with 1 workers like this one",
            ],
        ),
        (["base.adapt.steps=2"], 1, [", 1160 images", "adaptation 60 s", "estimate: 2.1 min"]),
        # 24 s, and the baseline that reads 4 views of 100 images first, 30.2 + 3 s, then of 60 of test, 17.1 + 2.2 s
        ([], 5, ["1160 images", "pretraining 9 s", "1.8 min of CPU time, 77 s with 5 workers"]),
        (
            ["search.split=test"],
            1,
            [
                "6 pretrainings, 8 evaluations of shards, 480 images",
                "pretraining 9 s, adaptation 18 s, image features 21 s",
                "estimate: 49 s of CPU time, 73 s",
            ],
        ),
        (["search.trials=2"], 1, ["2 pretrainings, 8 evaluations of shards, 640 images"]),
        (["search.wall_clock=60"], 1, ["tasks", "worker time", "estimate", "the budget of 60 s ends it earlier"]),
        (["search.wall_clock=100"], 5, ["tasks", "worker time", "77 s with 5 workers"]),
        # 4 of 6 trials, of 3 s each, of 105 s
        (["search.race={reserve: 2}"], 1, ["tasks", "worker time", "1.8 min", RACE.format(2, 11, 2, 7)]),
        # points and the published setting are never stopped
        (
            ["search.race={reserve: 2}", f"points=[{', '.join(f'{{fpp.gamma1: {n}}}' for n in (2, 3, 4))}]"],
            1,
            ["tasks", "worker time", "1.8 min", RACE.format(4, 6, 1, 3)],
        ),
    ],
)
def test_costs_are_sums_of_what_each_task_takes(overrides, workers, lines):
    space = parse_space(LEAN, "space.yaml", overrides)
    plan = Plan(datasets=FACTS, seeds=(0,))
    configs, keys = dict(expected_configs(space)), TaskKeys(MODEL, plan.known())
    found = list(cost_lines([Expected(space, plan, configs)], {"dtd": FIXED}, workers, keys))
    assert len(found) == max(3, len(lines))
    for line, words in zip(found, lines, strict=False):
        assert words in line


def test_a_table_shows_what_more_workers_bring():
    space = parse_space(LEAN, "space.yaml")
    plan = Plan(datasets=FACTS, seeds=(0,))
    sweeps, keys = [Expected(space, plan, dict(expected_configs(space)))], TaskKeys(MODEL, plan.known())
    *_, size, _, one, many = cost_lines(sweeps, {"dtd": FIXED}, 1, keys, size=1000, table=(1, 100))
    assert size.startswith("image features: 0.8 MB ")  # 160 images with 4 views, and with 1
    # 9 s of prompts, 2 plain and 7 tuned evaluations of 100 images, 26 s; on 60 test images 14 s
    assert re.split("  +", one.strip()) == ["1", "24 s", "59 s", "35 s", "14 s", "2.2 min", "18%"]
    # 33 s until one has read and adapted to 100 images, 19 s on the test split; without reading 5 and 3 s
    assert re.split("  +", many.strip()) == ["100", "24 s", "45 s", "5 s", "3 s", "77 s", "99%"]


@pytest.mark.parametrize(("trials", "count"), [(3, 3), (100, 4)])
def test_a_grid_is_no_longer_than_itself_and_the_budget(trials, count):
    text = named("grid: [{method: [tpt, ctpt, otpt, zero_shot]}]\nsearch: {sampler: grid}\nwork: {baselines: []}")
    space = parse_space(text, "space.yaml", [f"search.trials={trials}"])
    assert len(space.queue()) == 4
    assert list(dict(expected_configs(space))) == [f"trial-{number:04d}" for number in range(count)]


@pytest.mark.parametrize(
    ("override", "neighbours", "told"),
    [
        ("work.workers=3", 2, "with 3 workers"),
        ("work.workers=20", 7, "20 workers"),
        ("work.cpus_per_worker=2", 3, "4 w"),
    ],
)
def test_a_dry_run_measures_beside_as_many_workers_as_there_will_be(monkeypatch, override, neighbours, told):
    kept = []
    monkeypatch.setattr(estimate, "cores", lambda: 8)
    monkeypatch.setattr(estimate, "busy", lambda others: nullcontext(kept.append(others)))
    monkeypatch.setattr(timing, "measure", lambda worker, start, facts: SPEED)
    words = ["search.split=test", "work.gpus_per_worker=0", "work.workers=null", override]
    text = dry_run([parse_space(SPACE, "space.yaml", words)])
    assert kept == [neighbours]
    assert told in text
    assert "8 evaluations" not in text  # of one dataset; there are two
    assert "16 evaluations of shards" in text


@pytest.mark.parametrize(("asked", "share", "told"), [("null", 1.0, "with 2 workers"), ("0.5", 0.5, "with 4 workers")])
def test_a_dry_run_counts_on_as_many_workers_as_a_machines_gpus_hold(monkeypatch, asked, share, told):
    """Two GPUs, as torch would tell; what would be timed on one is not."""
    gpus = []
    there = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2)
    monkeypatch.setattr(estimate, "torch", SimpleNamespace(cuda=there))
    monkeypatch.setattr(estimate, "worker_spec", lambda space, gpu: gpus.append(gpu) or worker_spec(space, 0.0))
    monkeypatch.setattr(estimate, "busy", lambda others: nullcontext())
    monkeypatch.setattr(timing, "measure", lambda worker, start, facts: SPEED)
    text = dry_run([parse_space(SPACE, "space.yaml", [f"work.gpus_per_worker={asked}", "work.workers=null"])])
    assert gpus == [share]
    assert told in text


class Clock:
    """Goes on only when work is done."""

    now = 0.0

    def __call__(self):
        return self.now

    def works(self, seconds, result=None):
        self.now += seconds
        return result


def test_what_is_measured_is_what_one_step_or_image_adds(space, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "perf_counter", clock)
    asked = []

    def adaptation(worker, task):
        asked.append((task.config.method, task.config.prompt))
        return (0.25, 9.0) if task.config.method == PLAIN else (2.0, 4.0)

    monkeypatch.setattr(timing, "_adaptation", adaptation)
    monkeypatch.setattr(timing, "_features", lambda worker, task: (0.5, 0.125))
    stub = SimpleNamespace(
        run=lambda task, needs: clock.works(10 + 3 * task.config.fpp.steps), computing=lambda config: nullcontext()
    )
    monkeypatch.setattr(timing, "ENOUGH", 20.0)
    assert measure(stub, space.start(), FACTS["val"][0]) == Speed(3.0, 2.0, 0.25, 4.0, 0.5, 0.125)
    assert asked == [(TPT, "a photo of a"), (PLAIN, "a photo of a")]


@pytest.mark.parametrize(("seconds", "counts"), [(0.01, [1, 8, 40]), (0.1, [1, 8]), (9.0, [1])])
def test_no_more_is_timed_than_takes_a_while(monkeypatch, seconds, counts):
    """Or the estimate of a large model would take longer than a coffee."""
    clock, timed = Clock(), []
    monkeypatch.setattr(timing, "perf_counter", clock)
    assert timing._of_one(lambda count: clock.works(seconds * count, timed.append(count)), 40) == pytest.approx(seconds)
    assert timed == counts
    timed.clear()
    worker = SimpleNamespace(run=lambda task, needs: clock.works(seconds, timed.append(task.config.fpp.steps)))
    timing._pretraining_step(worker, TrialConfig(), "dtd")
    assert timed == ([1, 1] if seconds > timing.ENOUGH else [1, 1, 1 + timing.STEPS])


def test_the_parts_of_a_task_are_timed_one_by_one(space, worker, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "perf_counter", clock)
    config = space.start().replace({"prompt": "a photo of a"})
    task = EvalTask(config=config, dataset="scenes", split="val", seed=0, start=0, stop=100)
    monkeypatch.setattr(worker, "adapter", lambda *_: clock.works(7.0))
    monkeypatch.setattr(timing, "evaluate", lambda clip, task, *_: clock.works(2.0 * task.stop))
    assert timing._adaptation(worker, task) == (2.0, 7.0)
    monkeypatch.setattr(Reader, "__getitem__", lambda self, position: clock.works(0.5))
    tower = lambda self, pixels: clock.works(len(pixels) / 8, pixels[:, 0, 0])  # noqa: E731
    monkeypatch.setattr(type(worker.clip), "image_features", tower)
    assert timing._features(worker, task) == (0.5, 0.125)


def test_what_a_gpu_was_only_given_is_waited_for(worker, space, monkeypatch):
    """As if it took five seconds for whatever it is given."""
    clock = Clock()
    monkeypatch.setattr(timing, "perf_counter", clock)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: clock.works(5.0))
    assert timing._timed(lambda: None) == 5.0
    task = EvalTask(config=space.start(), dataset="scenes", split="val", seed=0, start=0, stop=100)
    monkeypatch.setattr(worker, "adapter", lambda *_: clock.works(7.0))
    monkeypatch.setattr(timing, "evaluate", lambda *_: None)
    assert timing._adaptation(worker, replace(task, config=task.config.replace({"prompt": "a photo of a"})))[1] == 12.0


def test_the_tower_is_timed_in_groups_that_fit_in_memory(space, worker, monkeypatch):
    sizes = []
    text = worker.clip.text
    room = replace(text.room, device=0.0)
    tight = replace(worker.clip, text=replace(text, room=room))
    monkeypatch.setattr(worker, "clip_for", lambda config: tight)
    tower = lambda self, pixels: sizes.append(len(pixels)) or pixels[:, 0, 0]  # noqa: E731
    monkeypatch.setattr(type(tight), "image_features", tower)
    timing._features(worker, EvalTask(config=space.start(), dataset="scenes", split="val", seed=0, start=0, stop=100))
    assert set(sizes) == {1}


def test_everything_can_be_measured(space, worker):
    (facts, _) = make_plan(space, worker).datasets["val"]
    speed = measure(worker, space.start(), facts)
    assert min(speed.image, speed.plain, speed.begin, speed.draw, speed.tower) > 0
    assert speed.step >= 0
