"""The time of a trial's steps: each is measured separately and with little work."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fpp_sweep.core.images.reading import Reader
from fpp_sweep.core.methods import gradients
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.tasks import EvalTask
from fpp_sweep.sweep import timing
from fpp_sweep.sweep.plan import make_plan
from fpp_sweep.sweep.timing import Speed, measure
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.spaces import DATASET_INFOS


class Clock:
    """A clock that advances only by `work`."""

    now = 0.0

    def __call__(self):
        return self.now

    def work(self, seconds, result=None):
        self.now += seconds
        return result


def test_the_time_of_a_step_is_the_time_that_one_more_step_adds(space, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "perf_counter", clock)
    monkeypatch.setattr(timing, "process_time", lambda: clock.now / 2)  # other work takes half of the core
    settings = []

    def time_adaptation(worker, task):
        settings.append((task.config.method, task.config.prompt))
        return (0.25, 9.0) if task.config.method == ZERO_SHOT else (2.0, 4.0)

    monkeypatch.setattr(timing, "_time_adaptation", time_adaptation)
    monkeypatch.setattr(timing, "_time_features", lambda worker, task: (0.5, 0.125))
    stub = SimpleNamespace(
        run=lambda task, needs: clock.work(10 + 3 * task.config.fpp.steps),
        model=SimpleNamespace(computing=lambda config: nullcontext()),
    )
    monkeypatch.setattr(timing, "MIN_TIMED_SECONDS", 20.0)
    assert measure(stub, space.start(), DATASET_INFOS["val"][0]) == Speed(
        3.0, 2.0, 0.25, 4.0, 0.5, 0.125, core_share=0.5
    )
    assert settings == [(TPT, "a photo of a"), (ZERO_SHOT, "a photo of a")]


@pytest.mark.parametrize(("seconds", "counts"), [(0.01, [1, 8, 40]), (0.1, [1, 8]), (9.0, [1])])
def test_timing_stops_after_enough_seconds(monkeypatch, seconds, counts):
    clock, timed = Clock(), []
    monkeypatch.setattr(timing, "perf_counter", clock)
    assert timing._seconds_of_one(lambda count: clock.work(seconds * count, timed.append(count)), 40) == pytest.approx(
        seconds
    )
    assert timed == counts
    timed.clear()
    worker = SimpleNamespace(run=lambda task, needs: clock.work(seconds, timed.append(task.config.fpp.steps)))
    timing._time_pretraining_step(worker, TrialConfig(), "dtd")
    assert timed == ([1, 1] if seconds > timing.MIN_TIMED_SECONDS else [1, 1, 1 + timing.TIMED_STEPS])


def test_each_part_of_a_task_is_timed_separately(space, worker, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "perf_counter", clock)
    config = space.start().replace({"prompt": "a photo of a"})
    task = EvalTask(config=config, dataset="scenes", split="val", seed=0, start=0, stop=100)
    monkeypatch.setattr(timing, "make_adapter", lambda *_: clock.work(7.0))
    monkeypatch.setattr(timing, "evaluate", lambda clip, task, *_: clock.work(2.0 * task.stop))
    monkeypatch.setattr(timing, "MAX_START_SECONDS", 100.0)
    assert timing._time_adaptation(worker, task) == (2.0, 7.0)
    monkeypatch.setattr(Reader, "__getitem__", lambda self, position: clock.work(0.5))

    def image_features(self, pixels):
        return clock.work(len(pixels) / 8, pixels[:, 0, 0])

    monkeypatch.setattr(type(worker.clip), "image_features", image_features)
    assert timing._time_features(worker, task) == (0.5, 0.125)


def test_a_method_that_takes_long_to_prepare_is_timed_with_a_few_classes(space, worker, monkeypatch):
    """The preparation takes a minute for each class, and an image two seconds for each class."""
    clock, prepared = Clock(), []
    monkeypatch.setattr(timing, "perf_counter", clock)

    def make_adapter(clip, config, dataset, prompt):
        prepared.append(dataset.classes)
        assert len(dataset) == 100  # the number of images decides the form of the gradient
        assert set(dataset.labels) == {0, 1}
        clock.work(60.0 * len(dataset.classes))

    monkeypatch.setattr(timing, "make_adapter", make_adapter)
    monkeypatch.setattr(timing, "evaluate", lambda clip, task, dataset, *_: clock.work(2.0 * len(dataset.classes)))
    config = space.start().replace({"prompt": "a photo of a"})
    task = EvalTask(config=config, dataset="scenes", split="val", seed=0, start=0, stop=100)
    classes = worker.datasets.open("scenes", "val").classes
    assert timing._time_adaptation(worker, task) == (2.0 * len(classes), 60.0 * len(classes))
    assert prepared == [classes[:2], classes[:2]]


def test_a_method_whose_jacobian_fits_for_a_few_classes_only_is_timed_with_all(space, worker, monkeypatch):
    clock, prepared = Clock(), []
    monkeypatch.setattr(timing, "perf_counter", clock)
    text = worker.clip.text
    config = space.start().replace({"prompt": "a photo of a"})
    task = EvalTask(config=config, dataset="scenes", split="val", seed=0, start=0, stop=100)
    jacobian = text.feature_size * open_prompt(worker.clip, config.prompt).context.numel() * 4  # bytes for one class
    room = replace(text.memory, device=2 * 3 * jacobian, host=0.0)  # half of it is for a Jacobian: of three classes
    tight = replace(worker.clip, text=replace(text, memory=room))
    monkeypatch.setattr(worker.model, "clip_for", lambda config: tight)
    monkeypatch.setattr(gradients, "jacobian_cost", lambda *_: gradients.Cost(fixed=0, per_sample=0))

    def make_adapter(clip, config, dataset, prompt):
        prepared.append(dataset.classes)
        clock.work(60.0 if len(dataset.classes) == 2 else 1.0)

    monkeypatch.setattr(timing, "make_adapter", make_adapter)
    monkeypatch.setattr(timing, "evaluate", lambda *_: clock.work(5.0))
    classes = worker.datasets.open("scenes", "val").classes
    assert timing._time_adaptation(worker, task) == (5.0, 1.0)
    assert prepared == [classes[:2], classes[:2], classes]


def test_the_time_includes_the_work_that_a_gpu_has_not_finished(worker, space, monkeypatch):
    """The stand-in for a GPU takes five seconds to synchronize."""
    clock = Clock()
    monkeypatch.setattr(timing, "perf_counter", clock)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: clock.work(5.0))
    assert timing._seconds(lambda: None) == 5.0
    task = EvalTask(config=space.start(), dataset="scenes", split="val", seed=0, start=0, stop=100)
    monkeypatch.setattr(timing, "make_adapter", lambda *_: clock.work(7.0))
    monkeypatch.setattr(timing, "evaluate", lambda *_: None)
    monkeypatch.setattr(timing, "MAX_START_SECONDS", 100.0)
    words_task = replace(task, config=task.config.replace({"prompt": "a photo of a"}))
    _, seconds_of_adapter = timing._time_adaptation(worker, words_task)
    assert seconds_of_adapter == 7.0 + 5.0


def test_the_tower_is_timed_in_groups_that_fit_in_memory(space, worker, monkeypatch):
    sizes = []
    text = worker.clip.text
    room = replace(text.memory, device=0.0)
    tight = replace(worker.clip, text=replace(text, memory=room))
    monkeypatch.setattr(worker.model, "clip_for", lambda config: tight)

    def image_features(self, pixels):
        sizes.append(len(pixels))
        return pixels[:, 0, 0]

    monkeypatch.setattr(type(tight), "image_features", image_features)
    timing._time_features(
        worker, EvalTask(config=space.start(), dataset="scenes", split="val", seed=0, start=0, stop=100)
    )
    assert set(sizes) == {1}


def test_a_real_worker_can_be_measured(space, worker):
    (dataset, _) = make_plan(space, worker).datasets["val"]
    speed = measure(worker, space.start(), dataset)
    assert min(speed.adapted_image, speed.zero_shot_image, speed.method_start) > 0
    assert min(speed.drawn_image, speed.encoded_view) > 0
    assert speed.pretraining_step >= 0
