"""Real workers on the embedded model, and both executors of their tasks."""

from contextlib import contextmanager, nullcontext

import pytest
import torch

from fpp_sweep.facts import WorkerSpec
from fpp_sweep.keys import TaskKeys
from fpp_sweep.trial.inline import InlineExecutor
from fpp_sweep.trial.store import TaskStore
from fpp_sweep.trial.trial import Plan
from fpp_sweep.trial.worker import Worker
from tests.workers.crew import kept


@pytest.fixture(scope="session")
def make_worker(tmp_path_factory):
    """Workers that share a model and a cache; they set torch's threads, which are set back."""
    threads, cache, clips = torch.get_num_threads(), tmp_path_factory.mktemp("cache"), []

    def make(**spec):
        worker = Worker(WorkerSpec(**{"model": "tiny", "cache": str(cache), "device": "cpu", "threads": 1, **spec}))
        if clips:
            worker.__dict__["clip"] = clips[0]
        clips.append(worker.clip)
        return worker

    yield make
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def worker(make_worker):
    """Enough images for three shards: more than two batches."""
    return make_worker(limit=150)


@pytest.fixture(scope="session")
def small(make_worker):
    return make_worker(limit=20)


def plan_of(worker, *, datasets=("digits",), seeds=(0,), splits=("val",), **options):
    described = {split: tuple(worker.describe(datasets, split)) for split in splits}
    return Plan(datasets=described, seeds=tuple(seeds), **options)


def inline(worker, plan, folder):
    return InlineExecutor(worker, TaskKeys(worker.facts(), plan.known()), TaskStore(folder))


@contextmanager
def executing(kind, worker, plan, folder, *, workers=2, **options):
    """An executor of that kind, with a store in the folder."""
    if kind == "inline":
        with nullcontext(inline(worker, plan, folder)) as executor:
            yield executor
    else:
        with kept([worker] * workers, TaskKeys(worker.facts(), plan.known()), TaskStore(folder), **options) as executor:
            yield executor
