"""What Ray is asked for, without Ray: how many workers, on which machines, and that it repeats nothing."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from fpp_sweep.errors import InputError
from fpp_sweep.trial.results import ModelFacts, WorkerSpec
from fpp_sweep.workers.pool import ActorSpec, KeeperActor, require_room

WORKER = WorkerSpec(model="tiny")
ONE = ActorSpec(actors=1, cpus=1.0, gpus=0.0, env={})


def keeper(needs):
    return KeeperActor(WORKER, needs, Path("units"), 1, 60.0)


@pytest.mark.parametrize(
    ("needs", "machines", "workers"),
    [
        ({}, {"CPU": 4.0, "GPU": 2.0}, 4),
        ({"cpus": 3.0}, {"CPU": 8.0}, 2),
        ({"cpus": 0.1}, {"CPU": 0.3}, 3),  # 0.3 / 0.1 is a little less than 3
        ({"gpus": 0.5}, {"CPU": 4.0, "GPU": 2.0}, 4),
        ({"cpus": 8.0}, {"CPU": 4.0}, 1),  # machines that hold one may yet come
        ({"gpus": 1.0}, {"CPU": 4.0}, 1),
        ({"actors": 7}, {"CPU": 4.0}, 7),
    ],
)
def test_there_are_as_many_workers_as_the_machines_hold_and_never_none(monkeypatch, needs, machines, workers):
    monkeypatch.setattr(ray, "cluster_resources", lambda: machines)
    assert keeper(replace(ONE, **{"actors": None, **needs}))._wanted() == workers


@pytest.mark.parametrize(
    ("needs", "complaint"),
    [
        ({"cpus": 4.0, "gpus": 0.5}, None),
        ({"cpus": 0.5, "gpus": 2.0}, None),
        ({"cpus": 4.5}, r"work\.cpus_per_actor=4\.5: the 2 nodes of this cluster have at most 4 CPUs"),
        ({"gpus": 2.5}, r"work\.gpus_per_actor=2\.5: the 2 nodes of this cluster have at most 2 GPUs"),
    ],
)
def test_a_worker_may_take_a_whole_machine_and_no_more(monkeypatch, needs, complaint):
    large, small, gone = {"CPU": 4.0, "GPU": 2.0}, {"CPU": 2.0}, {"CPU": 64.0, "GPU": 8.0}
    nodes = [{"Resources": resources, "Alive": resources is not gone} for resources in (small, large, gone)]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    asked = replace(ONE, **needs)
    if complaint is None:
        assert require_room(asked, may_grow=False) is None
        return
    with pytest.raises(InputError, match=complaint):
        require_room(asked, may_grow=False)
    assert "waiting for machines" in require_room(asked, may_grow=True)


def test_ray_repeats_no_call_and_replaces_no_worker(monkeypatch):
    """Both are the keeper's to do, who counts the attempts."""
    asked = []
    facts = ModelFacts(name="tiny", digest="0", embedding_scale=1.0, device="cpu", node="here", pid=1, seconds=0.0)

    def answer():
        found = asyncio.get_running_loop().create_future()
        found.set_result(facts)
        return found

    def remote(**options):
        asked.append(options)
        return lambda kind: SimpleNamespace(remote=lambda spec: SimpleNamespace(facts=SimpleNamespace(remote=answer)))

    async def hire():
        return await keeper(ONE)._keeper.hire()

    monkeypatch.setattr(ray, "remote", remote)
    assert asyncio.run(hire()).facts == facts
    assert [(each["max_task_retries"], each["max_restarts"]) for each in asked] == [(0, 0)]
