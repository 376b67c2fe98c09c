"""What `--dry-run` says is what a sweep does."""

import re

import pytest
from fpp_sweep.trial.tasks import EvalTask, PretrainTask

from fpp_sweep.config import relevant
from fpp_sweep.space.reading import parse_space
from fpp_sweep.sweep.estimate import Speed, costs, described, expected, measured, sampled
from fpp_sweep.sweep.run import make_plan, worker_spec
from fpp_sweep.trial.results import Names
from fpp_sweep.trial.trial import tasks_of
from fpp_sweep.trial.worker import Worker

SPACE = """
base: {fpp.steps: 3, views.count: 4, adapt.selection: 0.5}
params:
  fpp.gamma1: {low: 0.1, high: 10, log: true}
  method: [tpt, otpt]
  adapt.penalty: {low: 1, high: 30, when: {method: otpt}}
search: {trials: 6}
work: {datasets: [scenes, digits], limit: 100, baselines: [zero_shot, tpt], workers: 2}
"""
SPEED = Speed(step=1.0, image=0.01, plain=0.001, begin=0.1, draw=0.004, tower=0.001)


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    return parse_space(SPACE, "space.yaml", [f"work.cache={tmp_path_factory.mktemp('cache')}"])


@pytest.fixture(scope="module")
def worker(space):
    return Worker(worker_spec(space, gpus=0.0))


def test_the_configs_are_those_of_the_sweep(space):
    configs = dict(expected(space))
    queue = space.queue()
    assert list(configs)[:2] == ["baseline-zero_shot", "baseline-tpt"]
    assert len(configs) == 2 + 6
    for number, (_, values) in enumerate(queue):
        assert configs[f"trial-{number:04d}"] == space.resolve(values)


def test_sampled_points_are_in_the_space(space):
    import random

    draw = random.Random(0)
    points = [sampled(space.searched(), draw) for _ in range(50)]
    assert all(0.1 <= point["fpp.gamma1"] <= 10 for point in points)
    assert {point["method"] for point in points} == {"tpt", "otpt"}
    assert all(("adapt.penalty" in point) == (point["method"] == "otpt") for point in points)


def test_settings_that_nothing_reads_are_not_shown(space):
    configs = dict(expected(space))
    assert not [
        key for key in relevant(configs["baseline-zero_shot"].flat()) if key.startswith(("fpp.", "adapt.", "views."))
    ]
    text = "\n".join(described(space, configs))
    assert "fpp.steps=3" in text
    assert "baseline-tpt: method=tpt, prompt=a photo of a" in text


def test_tasks_are_counted_once_however_many_trials_share_them(space, worker):
    plan = make_plan(space, worker)
    configs = dict(expected(space))
    lines = list(costs(space, plan, configs, dict.fromkeys(["scenes", "digits"], SPEED), 2, False))
    known = {(facts.name, part): facts for part, datasets in plan.datasets.items() for facts in datasets}
    names = Names("", known)
    tasks = {}
    for name, config in configs.items():
        for part in ("val", "test") if name.startswith("baseline") or name <= "trial-0003" else ("val",):
            for shards in tasks_of(plan, config, part).values():
                wanted = [*shards, shards[0].pretrain] if config.prompt == "fpp" else shards
                tasks |= {names.key(task): task for task in wanted}
    pretrainings = sum(isinstance(task, PretrainTask) for task in tasks.values())
    evaluations = sum(isinstance(task, EvalTask) for task in tasks.values())
    assert f"{pretrainings} pretrainings, {evaluations} evaluations" in lines[0]
    assert re.search(rf"pretraining {3 * pretrainings} s", lines[1])


def test_what_is_measured_is_of_the_size_of_what_is_run(space, worker):
    (facts, _) = make_plan(space, worker).datasets["val"]
    speed = measured(worker, space, facts)
    assert min(speed.step, speed.image, speed.plain, speed.draw, speed.tower) > 0
    task = EvalTask(config=space.resolve({"fpp.gamma1": 1.0}), dataset="scenes", split="val", seed=0, start=0, stop=100)
    worker.run(task.pretrain)
    prompt = worker.run(task.pretrain).prompt
    seconds = worker.run(task, prompt).seconds
    assert 0.1 < (speed.begin + 100 * speed.image) / seconds["adapt"] < 10
    assert 0.1 < 100 * (speed.draw + 4 * speed.tower) / seconds["features"] < 10
