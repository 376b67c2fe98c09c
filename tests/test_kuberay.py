"""cluster/kuberay.yaml: Ray's autoscaler reads it as intended, and its cluster is secure and complete."""

import os
import subprocess
import warnings
from pathlib import Path

import pytest
import yaml

from fpp_sweep import tune
from tests.kit.processes import ROOT

FILE = ROOT / "cluster/kuberay.yaml"
# The fields of KubeRay 1.6 in each section of the file: KubeRay drops unknown keys without a message.
KUBERAY_FIELDS = {
    "job": "backoffLimit entrypoint submissionMode shutdownAfterJobFinishes rayClusterSpec",
    "cluster": "rayVersion authOptions enableInTreeAutoscaling autoscalerOptions headGroupSpec workerGroupSpecs",
    "head": "rayStartParams template",
    "workers": "groupName replicas minReplicas maxReplicas rayStartParams template",
}


@pytest.fixture
def claim():
    return documents()[0]


@pytest.fixture
def job():
    return documents()[1]


@pytest.fixture
def cluster(job):
    return job["spec"]["rayClusterSpec"]


def documents():
    return [*yaml.safe_load_all(FILE.read_text())]


def pods(cluster):
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def test_rays_autoscaler_starts_gpu_workers_on_demand_and_ends_idle_ones(cluster):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader = pytest.importorskip("ray.autoscaler._private.kuberay.autoscaling_config")
    config = reader._derive_autoscaling_config_from_ray_cr(
        {"metadata": {"name": "perturb", "namespace": "default"}, "spec": cluster}
    )
    head, gpu = config["available_node_types"]["headgroup"], config["available_node_types"]["gpu"]
    assert (head["resources"]["CPU"], gpu["resources"]["CPU"], gpu["resources"]["GPU"]) == (0, 8, 1)
    assert (gpu["min_workers"], gpu["max_workers"], config["max_workers"]) == (0, 4, 4)
    assert config["idle_timeout_minutes"] == 10
    assert cluster["enableInTreeAutoscaling"]


def test_kuberay_knows_every_key(job, cluster):
    (workers,) = cluster["workerGroupSpecs"]
    for section, keys in {
        "job": job["spec"],
        "cluster": cluster,
        "head": cluster["headGroupSpec"],
        "workers": workers,
    }.items():
        assert set(keys) <= set(KUBERAY_FIELDS[section].split()), section
    assert cluster["authOptions"] == {"mode": "token"}
    assert set(cluster["autoscalerOptions"]) <= {"version", "idleTimeoutSeconds"}


def test_all_pods_have_the_image_the_volume_and_the_cache_on_it(claim, cluster):
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in pods(cluster):
        (container,) = pod["containers"]
        assert container["image"] == pods(cluster)[0]["containers"][0]["image"]
        (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
        assert mount["name"] == volume["name"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        (cache,) = [entry["value"] for entry in container["env"] if entry["name"] == "FPP_SWEEP_CACHE"]
        assert cache.startswith(mount["mountPath"])
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_workers_may_run_on_spot_machines_with_gpus(cluster):
    head, workers = pods(cluster)
    assert "tolerations" not in head  # the head holds the sweep, so it avoids spot machines
    assert {entry["key"] for entry in workers["tolerations"]} >= {"nvidia.com/gpu"}
    assert len(workers["tolerations"]) == 2


@pytest.mark.parametrize("sweep_exists", [False, True])
def test_the_entrypoint_starts_or_resumes_the_sweep(job, tmp_path, sweep_exists):
    """The test runs the entrypoint in a shell, as Ray's job server does, with `echo` instead of Python."""
    name = job["metadata"]["name"]
    (tmp_path / "sweeps" / name).mkdir(parents=True)
    if sweep_exists:
        (tmp_path / "sweeps" / name / "sweep.json").touch()
    entrypoint = job["spec"]["entrypoint"].replace("cd /fpp ", f"cd {tmp_path} ").replace("exec python", "echo")
    words = subprocess.run(entrypoint, shell=True, check=True, capture_output=True, text=True).stdout.split()
    assert words[:2] == ["-m", "fpp_sweep.tune"]
    args = tune.parse(words[2:])
    assert (args.name, args.resume is not None, args.address) == (name, sweep_exists, "auto")
    assert args.space.name in os.listdir(ROOT / "search_spaces")
    assert args.out == Path("sweeps")  # the folder in which the entrypoint looks for the sweep
    assert int(args.workers) == job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["maxReplicas"]
    assert "work.gpus_per_worker=1" in args.set  # without this key the autoscaler would start no GPU machine
