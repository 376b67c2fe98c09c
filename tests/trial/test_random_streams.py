"""Random numbers of a trial: every stream depends on the seed and the dataset, and serves one purpose."""

import sys

import pytest

from fpp_sweep.core.compute import torch_generator
from fpp_sweep.core.images.views import sample_rng
from fpp_sweep.spec.tasks import PretrainTask
from tests.kit.names import DYNAPROMPT, TPT
from tests.kit.tasks import evaluation

SAMPLES = 5


@pytest.fixture
def streams(monkeypatch):
    """Return a list that collects the initial state of every random stream, whichever module creates it."""
    states = []

    def torch_stream(*names):
        generator = torch_generator(*names)
        states.append(generator.initial_seed())
        return generator

    def numpy_stream(*names):
        generator = sample_rng(*names)
        states.append(generator.bit_generator.state["state"]["state"])
        return generator

    recording = {torch_generator: torch_stream, sample_rng: numpy_stream}
    for name, module in list(sys.modules.items()):
        if not name.startswith("fpp_sweep"):
            continue
        for attribute, value in list(vars(module).items()):
            if callable(value) and value in (torch_generator, sample_rng):
                monkeypatch.setattr(module, attribute, recording[value])
    return states


def pretraining(dataset, seed):
    settings = {"prompt": "fpp", "fpp.class_source": "gaussian", "fpp.steps": 1, "fpp.draws": 1}
    return PretrainTask(config=evaluation(**settings).config, dataset=dataset, seed=seed)


def shuffled_stream(dataset, seed):
    settings = {"views.count": 2, "adapt.slots": 2, "adapt.order": "shuffled", "method": DYNAPROMPT[TPT]}
    return evaluation(dataset=dataset, seed=seed, stop=SAMPLES, **settings)


@pytest.mark.parametrize(
    ("task_of", "count"),
    [
        (pretraining, 3),  # streams of the start, the noise and the made-up classes
        (shuffled_stream, SAMPLES + 1),  # one stream for the views of each sample, and one for the order
    ],
)
def test_all_random_streams_differ_between_seeds_and_datasets(make_worker, tmp_path, streams, task_of, count):
    worker = make_worker(limit=SAMPLES, cache=str(tmp_path))
    by_run = {}
    for dataset, seed in (("digits", 0), ("digits", 1), ("scenes", 0)):
        streams.clear()
        worker.run(task_of(dataset, seed), [])
        by_run[dataset, seed] = set(streams)
    assert {len(states) for states in by_run.values()} == {count}
    assert len(set().union(*by_run.values())) == count * len(by_run)
