"""`doctor`: one planted fault or more for each check, sound setups, and real nodes with planted faults."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fpp_sweep import doctor
from fpp_sweep.checks import data, machine
from fpp_sweep.checks.cluster_file import check_cluster_file, read_cluster_file
from fpp_sweep.checks.findings import Finding, compare_machines, finding_table, run_check
from fpp_sweep.core.datasets import open_dataset
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.command_line import space_to_tune
from fpp_sweep.sweep.doctor import check_mlflow, check_plan_of, findings_by_machine, worker_to_check
from fpp_sweep.sweep.plan import splits_of_space
from tests.kit.datasets import build_coop
from tests.kit.disks import mounted
from tests.kit.processes import ROOT, environment, killed_at_end, start_tune
from tests.kit.rights import without_root_rights
from tests.kit.waiting import LONG, wait_for
from tests.workers.test_nodes import HEAD, node, room

ONPREM = ROOT / "cluster-onprem.yaml"


# --- one machine and one sweep


class Setup:
    """A machine and a sweep without faults in a folder; a fault changes some part."""

    def __init__(self, folder, patch):
        self.folder, self.patch = folder, patch
        self.animals = folder / "animals"
        draw_animals(self.animals)
        self.datasets = [f"animals={self.animals}"]
        self.spec = WorkerSpec(model="tiny", cache=str(folder / "cache"), threads=1, device="cpu")
        self.prompt = "a photo of a"
        self.overrides = []  # of keys of the space

    def dataset_file(self, text):
        (self.folder / "mine.yaml").write_text(text)
        self.spec = replace(self.spec, dataset_file=str(self.folder / "mine.yaml"))
        self.datasets = ["mine"]

    def space(self):
        work = {"datasets": self.datasets, "baselines": []}
        for key in ("model", "data_root", "dataset_file", "limit", "cache"):
            work[key] = getattr(self.spec, key)
        document = {
            "params": {"method": ["zero_shot", "tpt"]},
            "base": {"prompt": self.prompt},
            "search": {"trials": 1, "include_published": False},
            "work": work,
        }
        return parse_space(json.dumps(document), "mine.yaml", self.overrides)

    def machine(self):
        """Return what is found on the machine alone."""
        return machine.check_machine(self.spec, False)

    def data(self):
        """Return what is found of model, datasets and plan."""
        spec, space = replace(self.spec, datasets=tuple(self.datasets)), self.space()
        return data.check_data(spec, self.datasets, splits_of_space(space), partial(check_plan_of, space))

    def sweep(self):
        """Return all that `doctor --space` finds."""
        return findings_by_machine(self.space(), Options(), None)["here"]


@pytest.fixture
def setup(tmp_path, monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Setup(tmp_path, monkeypatch)


def draw_animals(folder, names=("cat", "dog")):
    draws = np.random.default_rng(0)
    for split in ("val", "test"):
        for name in names:
            (folder / split / name).mkdir(parents=True)
            for number in range(4):
                pixels = draws.integers(0, 255, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")


def protected_cache(setup):
    (setup.folder / "cache/tasks").mkdir(parents=True)
    (setup.folder / "cache/tasks").chmod(0o500)
    with without_root_rights():
        return setup.machine()


def full_cache(setup):
    with mounted(setup.folder / "disk", "size=64k") as disk:
        setup.spec = replace(setup.spec, cache=str(disk))
        return setup.machine()


def little_memory(setup):
    setup.patch.setattr(machine, "MIN_MEMORY", 1e15)
    return setup.machine()


def old_library(setup):
    setup.patch.setattr(machine, "versions", lambda: {"ray": "1.13.0"})
    return setup.machine()


def write_token(setup, text, mode):
    (setup.folder / "token").write_text(text)
    (setup.folder / "token").chmod(mode)
    setup.patch.setenv("RAY_AUTH_TOKEN_PATH", str(setup.folder / "token"))
    return setup.machine()


def cluster_without_token(setup):
    return machine.check_machine(setup.spec, True)


def gpu_tool(script):
    """Return a fault: a program called nvidia-smi that runs a script of the shell."""

    def plant(setup):
        (setup.folder / "bin").mkdir()
        (setup.folder / "bin/nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (setup.folder / "bin/nvidia-smi").chmod(0o755)
        setup.patch.setenv("PATH", f"{setup.folder / 'bin'}:{os.environ['PATH']}")
        setup.patch.setattr(machine, "GPU_SECONDS", 30)
        setup.spec = replace(setup.spec, device="auto")
        return setup.machine()

    return plant


def file_named_like_sweeps(setup):
    (setup.folder / "sweeps").write_text("notes")
    return setup.sweep()


def unusable_store(setup):
    (setup.folder / "mlflow.db").write_text("notes" * 100)
    return setup.sweep()


def protected_store(setup):
    (setup.folder / "mlflow.db").touch(mode=0o444)
    with without_root_rights():
        return [run_check("MLflow", "name another store", partial(check_mlflow, "sqlite:///mlflow.db"))]


def missing_weights(setup):
    setup.spec = replace(setup.spec, model="ViT-S-16-alt:nowhere.pt")
    return setup.data()


def unknown_dataset(setup):
    setup.datasets = ["anmals"]
    return setup.data()


def missing_split(setup):
    shutil.rmtree(setup.animals / "test")
    return setup.data()


def images_in_two_splits(setup):
    rows = []
    for label, name in enumerate(("cat", "dog")):
        rows += [[f"val/{name}/{number}.png", label, name] for number in range(4)]
    (setup.folder / "split.json").write_text(json.dumps({"val": rows, "test": rows}))
    setup.dataset_file("mine: {layout: split_json, images: animals, split_file: split.json}\n")
    return setup.data()


def damaged_image(setup):
    (setup.animals / "test/cat/2.png").write_bytes(b"no image")
    return setup.data()


def empty_class(setup):
    shutil.rmtree(setup.animals / "test/dog")
    return setup.data()


def one_name_of_two_classes(setup):
    setup.dataset_file("mine: {layout: folders, images: animals, classes: {dog: Cat}}\n")
    return setup.data()


def part_of_a_published_split(setup):
    build_coop(setup.folder / "data", "pets")
    setup.spec, setup.datasets = replace(setup.spec, data_root=str(setup.folder / "data")), ["pets"]
    return setup.data()


def shuffled_names(setup):
    write_zoo(setup.folder)
    setup.spec = replace(setup.spec, dataset_file="zoo.yaml")
    setup.datasets, setup.overrides = ["shuffled"], ["search.split=test"]
    return setup.data()


def missing_prompt(setup):
    setup.prompt = "nowhere.safetensors"
    return setup.data()


def overrides(*words):
    """Return a fault: keys of the space."""

    def plant(setup):
        setup.patch.setenv("CUDA_VISIBLE_DEVICES", "")
        setup.overrides = list(words)
        return setup.sweep()

    return plant


FAULTS = [  # a function that plants the fault, and the finding: subject, state, parts of its text and of its remedy
    (old_library, "ray", "wrong", "1.13.0, but this package needs", "install ray"),
    (protected_cache, "cache", "wrong", "cache/tasks: Permission denied", "FPP_SWEEP_CACHE"),
    (full_cache, "cache", "wrong", "No space left on device", "make room"),
    (little_memory, "memory", "wrong", "GB", "free memory"),
    (partial(write_token, text="secret", mode=0o644), "token", "wrong", "0644", "chmod 600"),
    (partial(write_token, text="\n", mode=0o600), "token", "wrong", "token: is empty", "write a token"),
    (cluster_without_token, "token", "wrong", "none", "RAY_AUTH_MODE=token"),
    (gpu_tool("echo NVIDIA L4"), "GPUs", "wrong", "NVIDIA L4; torch sees 0", "install a driver"),
    (gpu_tool("echo No devices were found; exit 6"), "GPUs", "note", "No devices were found", ""),
    (file_named_like_sweeps, "sweeps", "wrong", "Not a directory", "--out"),
    (unusable_store, "MLflow", "wrong", "not usable as MLflow's database", "--tracking-uri"),
    (protected_store, "MLflow", "wrong", "Permission denied", "another store"),
    (missing_weights, "weights", "wrong", "nowhere.pt", "--model"),
    (unknown_dataset, "datasets", "wrong", "unknown dataset 'anmals'", "correct the dataset's name"),
    (missing_split, "dataset animals", "wrong", "has no test split", "--datasets lists what splits lack"),
    (images_in_two_splits, "dataset mine", "wrong", "val and test share 8 images", ""),
    (empty_class, "dataset animals", "note", "test: 1 of 2 classes without images, such as dog", "correct the dataset"),
    (one_name_of_two_classes, "dataset mine", "note", "several classes are called cat", "correct the dataset"),
    (part_of_a_published_split, "dataset pets", "note", "6 images, but 3669 were published", "correct the dataset"),
    (damaged_image, "files of animals", "wrong", "16 images opened, 1 cannot be read", "replace these files"),
    (shuffled_names, "accuracy on shuffled, test", "wrong", "classified correctly", "class names belong together"),
    (missing_prompt, "plan of the sweep", "wrong", "nowhere.safetensors", "correct the method, prompt"),
    (
        overrides("work.gpus_per_worker=0.5"),
        "room for workers",
        "wrong",
        "this machine has 0 GPUs",
        "lower the setting",
    ),
    (overrides("work.device=cuda:1"), "start of the sweep", "wrong", "workers get theirs from Ray", "correct the"),
]


def name_of(value):
    if callable(value):
        return getattr(value, "__name__", "fault")
    return None


@pytest.mark.parametrize(("plant", "subject", "state", "text", "remedy"), FAULTS, ids=name_of)
def test_exactly_the_planted_fault_is_found_with_its_remedy(setup, plant, subject, state, text, remedy):
    found = plant(setup)
    (finding,) = [finding for finding in found if finding.subject == subject]
    assert finding.state == state, finding
    assert text in finding.text
    assert remedy in finding.remedy
    others = {finding.subject for finding in found if finding.state == "wrong"} - {subject, "memory"}
    assert not others or (subject == "MLflow" and others == {"start of the sweep"})  # which opens the store, too


def own_images(setup):
    return setup.sweep()


def embedded_datasets(setup):
    setup.datasets, setup.spec = ["scenes", "digits"], replace(setup.spec, limit=4)
    return setup.sweep()


def unread_image(setup):
    """Damage an image that the limit leaves out."""
    setup.spec = replace(setup.spec, limit=4)
    custom = data.custom_datasets(setup.datasets, None)
    (setup.animals / open_dataset("animals", "test", None, custom).ids[7]).write_bytes(b"no image")
    return setup.data()


def sweep_for_gpus(setup):
    spec = replace(setup.spec, precisions=("tf32",), datasets=tuple(setup.datasets))
    return data.check_data(spec, setup.datasets, ["val"])


@pytest.mark.parametrize("plant", [own_images, embedded_datasets, unread_image, sweep_for_gpus])
def test_a_sound_setup_gives_no_alarm_and_doctor_makes_no_folder(setup, plant):
    found = plant(setup)
    assert not [finding for finding in found if finding.state == "wrong" and finding.subject != "memory"]
    assert not (setup.folder / "cache").exists()
    assert not (setup.folder / "sweeps").exists()


@pytest.mark.parametrize(("setting", "is_checked"), [("device=auto", True), ("gpus_per_worker=0", False)])
def test_gpus_are_checked_only_for_a_sweep_that_may_use_them(setting, is_checked):
    space = space_to_tune(ROOT / "search_spaces/smoke.yaml", [f"work.{setting}"])
    subjects = {finding.subject for finding in machine.check_machine(worker_to_check(space, Options()), False)}
    assert ("GPUs" in subjects) is is_checked


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_the_sampled_images_separate_a_fitting_model_from_guessing(classes):
    """The fitting model's accuracy lies a third of the way from guessing to 100 %."""
    images, draws = data.images_to_tell(classes), np.random.default_rng(0)
    share = 1 / classes
    guessed = draws.binomial(images, share, 20_000)
    fitting = draws.binomial(images, share + (1 - share) / 3, 20_000)
    assert np.mean([data.looks_like_guessing(int(hits), images, classes) for hits in fitting]) <= 0.055
    assert np.mean([data.looks_like_guessing(int(hits), images, classes) for hits in guessed]) >= 0.998


@pytest.mark.nightly
@pytest.mark.slow  # clones the repository and runs the command there
def test_a_fresh_checkout_gives_no_alarm(tmp_path):
    subprocess.run(["git", "clone", "-q", ROOT, tmp_path / "clone"], check=True)
    words = [sys.executable, "-m", "fpp_sweep.doctor", "--space", "smoke"]
    env = environment(tmp_path) | {"PYTHONPATH": str(tmp_path / "clone")}
    done = subprocess.run(words, cwd=tmp_path / "clone", env=env, capture_output=True, text=True, timeout=LONG)
    wrong = [line for line in done.stdout.splitlines() if re.search(r"  wrong  ", line)]
    assert not [line for line in wrong if "  memory  " not in line], done.stdout + done.stderr


# --- several machines


def test_a_value_that_differs_from_most_machines_is_wrong():
    findings = {name: [Finding("ok", "2.9.0", must_match="2.9.0", subject="torch")] for name in ("n1", "n2", "n3")}
    findings["n3"] = [Finding("ok", "2.10.0", must_match="2.10.0", subject="torch")]
    findings["n1"].append(Finding("wrong", "no folder", "mount it", subject="dataset pets"))
    findings["n2"].append(Finding("ok", "8 images", must_match="a", subject="dataset pets"))
    compared = compare_machines(findings)
    assert [found[0].state for found in compared.values()] == ["ok", "ok", "wrong"]
    assert [found[1].state for name, found in compared.items() if name != "n3"] == ["wrong", "ok"]


def test_builds_of_torch_for_different_devices_match():
    version = torch.__version__.partition("+")[0]
    findings = {build: [machine.check_version("torch", f"{version}+{build}")] for build in ("cpu", "cu130")}
    assert all(finding.state == "ok" for (finding,) in compare_machines(findings).values())


def test_what_needs_action_stands_last_with_its_remedy_below():
    python = Finding("ok", "3.12.1", subject="python")
    findings = {"n1": [Finding("wrong", "1.0 GB", "free memory", subject="memory"), python], "n2": [python]}
    assert finding_table(findings).splitlines() == [
        "node  what    state  found",
        "all   python  ok     3.12.1",
        "n1    memory  wrong  1.0 GB",
        "                     free memory",
    ]


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "is not there"), (b"provider: [", "is not valid YAML: while parsing a flow node")]
)
def test_a_cluster_file_that_cannot_be_read_is_refused_before_anything_is_checked(tmp_path, capsys, content, problem):
    file = tmp_path / "cluster.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=f"^cluster file {file} {re.escape(problem)}"):
        doctor.main(["--cluster-file", str(file)])
    assert capsys.readouterr().out == ""


def test_addresses_of_the_shipped_cluster_file_and_missing_nodes_are_listed(tmp_path):
    assert "192.0.2.10" in check_cluster_file(read_cluster_file(ONPREM), None).text
    (tmp_path / "own.yaml").write_text("provider: {type: local, head_ip: 127.0.0.2, worker_ips: [127.0.0.3]}\n")
    own = read_cluster_file(tmp_path / "own.yaml")
    assert check_cluster_file(own, ["127.0.0.2"]) == Finding("wrong", "127.0.0.3 has not joined")
    assert check_cluster_file(own, ["127.0.0.2", "127.0.0.3"]).state == "ok"
    (tmp_path / "cloud.yaml").write_text(
        "provider: {type: aws}\navailable_node_types: {head: {}, gpu: {min_workers: 2}}\n"
    )
    assert check_cluster_file(read_cluster_file(tmp_path / "cloud.yaml"), ["a", "b"]).text == "2 of 3 nodes have joined"


# --- real nodes


SPACE = """
params: {fpp.gamma1: {low: 0.1, high: 10, log: true}}
search: {trials: 1, split: test}
work: {dataset_file: zoo.yaml, datasets: [zoo], baselines: [zero_shot], workers: 1}
"""
FAULTY_STARTUP = """
import os, resource, sys
if "default_worker.py" in " ".join(sys.orig_argv):
    resource.setrlimit(resource.RLIMIT_DATA, (1_400_000_000, resource.RLIM_INFINITY))
"""
MOUNT_FAULTS = 'mount -t tmpfs tmpfs {hidden} && mount -t tmpfs -o size=64k tmpfs {cache} && ulimit -n 512 && exec "$@"'


def write_zoo(folder):
    """Write the embedded scenes as a user's dataset; a second dataset has its classes in another order."""
    scenes = open_dataset("scenes", "test").head(70)
    for sample, label in zip(scenes.ids, scenes.labels, strict=True):
        file = folder / "zoo" / "test" / f"n{label:02}" / f"{sample.replace('/', '_')}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        scenes.source.image(sample).save(file)
    labels = sorted({*scenes.labels.tolist()})
    folders, names = [f"n{label:02}" for label in labels], [scenes.classes[label] for label in labels]
    lines = []
    for name, order in (("zoo", names), ("shuffled", [*names[1:], names[0]]), ("hidden", names)):
        images = "hidden/zoo" if name == "hidden" else "zoo"
        classes = dict(zip(folders, order, strict=True))
        lines.append(f"{name}: {{layout: folders, images: {images}, classes: {classes}}}")
    (folder / "zoo.yaml").write_text("\n".join(lines))


def write_weights(path):
    from open_clip import get_model_config
    from open_clip.model import CLIP

    torch.save(CLIP(**get_model_config("ViT-S-16-alt")).state_dict(), path)


def token_environment(path, text, mode):
    path.write_text(text)
    path.chmod(mode)
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path), "RAY_USAGE_STATS_ENABLED": "0"}


def run_doctor(folder, *words, space=("--space", "small.yaml")):
    """Run `doctor`; return its exit status, the wrong rows as (node, what), and its whole output."""
    start = [sys.executable, "-m", "fpp_sweep.doctor", *space, *words]
    env = {
        name: value for name, value in environment(folder).items() if name != "FPP_SWEEP_CACHE"
    }  # each node has its own cache
    done = subprocess.run(start, cwd=folder, env=env, capture_output=True, text=True, timeout=LONG)
    # Notes are ignored: they may concern the machine of the test, for example its free memory.
    rows = re.findall(r"^(\S.*?)  +(\S.*?)  +wrong  ", done.stdout, flags=re.M)
    return done.returncode, {*rows}, done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.slow  # starts three nodes and checks them four times
def test_exactly_the_planted_faults_of_a_node_are_found(tmp_path, monkeypatch):
    if os.geteuid() or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("mounting a file system needs root")
    write_zoo(tmp_path)
    (tmp_path / "small.yaml").write_text(SPACE)
    hidden, cache = tmp_path / "hidden", tmp_path / "small-cache"
    for folder in (hidden, cache, tmp_path / "faults"):
        folder.mkdir()
    shutil.copytree(tmp_path / "zoo", hidden / "zoo")
    write_weights(hidden / "small.pt")
    other = tmp_path / "other"
    shutil.copytree(ROOT / "fpp_sweep", other / "fpp_sweep")
    with (other / "fpp_sweep/spec/version.py").open("a") as file:
        file.write("\n# another commit\n")
    (tmp_path / "faults/sitecustomize.py").write_text(FAULTY_STARTUP)
    monkeypatch.delenv("FPP_SWEEP_CACHE", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    token = secrets.token_hex(32)
    for name, value in token_environment(tmp_path / "token", token, 0o600).items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(prefix="nodes-", ignore_cleanup_errors=True) as scratch, ExitStack() as cluster:
        scratch = Path(scratch)
        own = {"PYTHONPATH": str(ROOT), "FPP_SWEEP_CACHE": str(tmp_path / "cache")}
        _, address = cluster.enter_context(node(scratch / "head", "127.0.0.2", *HEAD, env=own))
        join = f"--address={address}"
        cluster.enter_context(node(scratch / "second", "127.0.0.3", join, env=own))
        wait_for(lambda: room(address) == 2)

        healthy = run_doctor(tmp_path, "--address", address)
        assert healthy[:2] == (0, set()), healthy[2]

        faulty = {
            "PYTHONPATH": f"{tmp_path / 'faults'}{os.pathsep}{other}",
            "FPP_SWEEP_CACHE": str(cache),
            **token_environment(tmp_path / "open-token", token, 0o644),
        }
        mounts = MOUNT_FAULTS.format(hidden=hidden, cache=cache)
        before = ["unshare", "--mount", "sh", "-c", mounts, "sh"]
        cluster.enter_context(node(scratch / "third", "127.0.0.4", join, env=faulty, before=before))
        wait_for(lambda: room(address) == 3)
        silent = cluster.enter_context(socket.socket())
        silent.bind(("127.0.0.1", 0))
        own_addresses = ONPREM.read_text().replace("192.0.2.10", "127.0.0.2").replace("192.0.2.11", "127.0.0.3")
        (tmp_path / "cluster.yaml").write_text(own_addresses.replace("192.0.2.12", "127.0.0.9"))
        words = "--address", address, "--cluster-file", "cluster.yaml"
        words += "--tracking-uri", f"http://127.0.0.1:{silent.getsockname()[1]}"
        status, found, output = run_doctor(tmp_path, *words, "--datasets", "zoo", "shuffled", "hidden")
        assert status == 1
        third = {("127.0.0.4", what) for what in ("code", "cache", "memory", "token", "dataset hidden")}
        assert found == third | {
            ("127.0.0.2, 127.0.0.3, 127.0.0.4", "accuracy on shuffled, test"),
            ("driver", "MLflow"),
            ("driver", "start of the sweep"),  # opens the store, too
            ("driver", "cluster file"),
        }, output
        assert "127.0.0.9 has not joined" in output
        assert token not in output

        model = f"ViT-S-16-alt:{hidden / 'small.pt'}"
        status, found, output = run_doctor(tmp_path, "--address", address, "--model", model)
        assert status == 1
        assert ("127.0.0.4", "weights") in found, output
        assert not {("127.0.0.2", "weights"), ("127.0.0.3", "weights")} & found

        sweep = cluster.enter_context(killed_at_end(start_tune(tmp_path, "--address", address, space=SPACE)))
        _, err = sweep.communicate(timeout=LONG)
    assert sweep.returncode == 2, err
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: 127.0.0.4: code ")
    assert not list((tmp_path / "sweeps").glob("*"))
