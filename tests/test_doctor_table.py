"""Planted faults and sound setups, and the findings of `doctor`, with real files, folders, disks and processes.

A few faults of clusters and GPUs are recorded readings. `python -m tests.test_doctor_table` prints the table.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fpp_sweep.checks import probes
from fpp_sweep.checks.checks import findings
from fpp_sweep.checks.cluster_file import missing_nodes, open_values
from fpp_sweep.checks.data_probes import Choices, data_readings
from fpp_sweep.checks.probes import node_readings, run_probes, token_mode
from fpp_sweep.core.models.loading import load
from fpp_sweep.spec import plugins
from fpp_sweep.spec.specs import TextSource, WorkerSpec
from fpp_sweep.sweep.inspection import mlflow_versions
from fpp_sweep.trial import worker_model
from fpp_sweep.workers.session_folders import OWNER_FILE, SESSION_PREFIX, session_processes
from tests.kit.datasets import build_coop
from tests.kit.disks import mounted
from tests.kit.processes import ROOT, environment
from tests.kit.waiting import LONG, wait_for
from tests.test_doctor import write_weights, write_zoo
from tests.test_hostile_folder import without_root_rights
from tests.test_misbehaving_plugins import Case
from tests.workers.test_session_folders import ended_process_id, start_raylet

load_once = cache(load)
# Findings that may concern the machine of the test itself.
OF_THIS_MACHINE = ("memory", "open files", "temporary files", "Ray's files", "killed drivers")


class Setup:
    """A machine and a sweep without faults in a folder; a fault changes some part."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, opened: ExitStack) -> None:
        self.folder, self.patch, self.opened = folder, patch, opened
        self.short = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="d", dir="/tmp")))
        (folder / "home").mkdir()
        patch.setenv("HOME", str(folder / "home"))
        patch.setenv("RAY_TMPDIR", str(self.short))
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "RAY_AUTH_TOKEN", "FPP_SWEEP_CACHE"):
            patch.delenv(name, raising=False)
        patch.setattr(worker_model, "load", load_once)
        patch.chdir(folder)
        self.animals = folder / "animals"
        draw_animals(self.animals)
        self.datasets = [f"animals={self.animals}"]
        self.splits = ["val", "test"]
        self.spec = WorkerSpec(model="tiny", cache=str(folder / "cache"), threads=1, device="cpu")
        self.choices = Choices(("tpt",), (TextSource("a photo of a"),), 60.0)

    def node(self) -> dict[str, Any]:
        return {"here": node_readings(self.spec, None)}

    def data(self) -> dict[str, Any]:
        spec = replace(self.spec, datasets=tuple(self.datasets))
        return {"here": data_readings(spec, self.datasets, self.splits, self.choices)}

    def dataset_file(self, text: str) -> None:
        (self.folder / "mine.yaml").write_text(text)
        self.spec = replace(self.spec, dataset_file=str(self.folder / "mine.yaml"))
        self.datasets = ["mine"]

    def plugin(self, case: Case) -> None:
        plugins.load([case.plugin("mine")])
        self.opened.callback(unload_plugins)

    def small_disk(self, size: str) -> Path:
        """Mount a small disk of this size below the short folder and return its path."""
        return self.opened.enter_context(mounted(self.short / "disk", f"size={size}"))


def unload_plugins() -> None:
    for file in plugins.loaded():
        plugins.unload(file)


def draw_animals(folder: Path, per_class: int = 4) -> None:
    draws = np.random.default_rng(0)
    for split in ("val", "test"):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for number in range(per_class):
                pixels = draws.integers(0, 255, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")


@dataclass(frozen=True)
class Fault:
    """A fault and its expected finding: subject, state, and parts of the text and of the remedy."""

    title: str
    plant: Callable[[Setup], dict[str, Any]]  # returns the readings of each node
    subject: str
    state: str
    text: str
    remedy: str


FAULTS: list[Fault] = []


def fault(subject: str, state: str, text: str, remedy: str):
    """Register a function that plants a fault; the function's docstring is the fault's title."""

    def register(plant):
        FAULTS.append(Fault(plant.__doc__, plant, subject, state, text, remedy))
        return plant

    return register


# ------------------------------------------------------------ the machine


@fault("Ray's files", "note", "too long for the names of sockets", "RAY_TMPDIR")
def long_ray_folder(setup):
    """RAY_TMPDIR too long"""
    setup.patch.setenv("RAY_TMPDIR", str(setup.folder / ("x" * 40)))
    return setup.node()


@fault("Ray's files", "note", "too long for the names of sockets", "RAY_TMPDIR")
def long_temporary_folder(setup):
    """TMPDIR too long"""
    (setup.folder / ("x" * 40)).mkdir()
    setup.patch.delenv("RAY_TMPDIR")
    setup.patch.setattr(tempfile, "tempdir", str(setup.folder / ("x" * 40)))
    return setup.node()


@fault("Ray's files", "wrong", "No space left on device", "name another folder with RAY_TMPDIR")
def full_ray_folder(setup):
    """RAY_TMPDIR full"""
    setup.patch.setenv("RAY_TMPDIR", str(setup.small_disk("64k")))
    return setup.node()


@fault("temporary files", "wrong", "No space left on device", "name another folder with TMPDIR")
def full_temporary_folder(setup):
    """TMPDIR full"""
    setup.patch.setattr(tempfile, "tempdir", str(setup.small_disk("64k")))
    return setup.node()


@fault("home folder", "wrong", "home: Permission denied", "set HOME to a folder that can be written")
def protected_home(setup):
    """HOME not writable"""
    (setup.folder / "home").chmod(0o500)
    with without_root_rights():
        return setup.node()


@fault("home folder", "wrong", "nowhere: No such file or directory", "set HOME")
def missing_home(setup):
    """HOME does not exist"""
    setup.patch.setenv("HOME", str(setup.folder / "nowhere"))
    return setup.node()


@fault("threads", "note", "4096 for a worker", "set work.threads")
def many_threads(setup):
    """more threads than cores"""
    setup.spec = replace(setup.spec, threads=4096)
    return setup.node()


@fault("proxy", "note", "http://proxy:3128", "add 127.0.0.1 and localhost to no_proxy")
def proxy(setup):
    """a proxy that takes loopback traffic"""
    setup.patch.setenv("http_proxy", "http://proxy:3128")
    setup.patch.delenv("no_proxy", raising=False)
    setup.patch.delenv("NO_PROXY", raising=False)
    return setup.node()


@fault("cache", "wrong", "cache: Permission denied", "work.cache or FPP_SWEEP_CACHE")
def protected_cache(setup):
    """cache folder not writable"""
    (setup.folder / "cache").mkdir(mode=0o500)
    with without_root_rights():
        return setup.node()


@fault("cache", "wrong", "No space left on device", "make room")
def full_cache(setup):
    """disk of the cache full"""
    setup.spec = replace(setup.spec, cache=str(setup.small_disk("64k")))
    return setup.node()


@fault("cache", "note", "free, written at", "make room")
def nearly_full_cache(setup):
    """disk of the cache nearly full"""
    setup.spec = replace(setup.spec, cache=str(setup.small_disk("500m")))
    return setup.node()


@fault("open files", "wrong", "512 at a time", "ulimit -n")
def few_open_files(setup):
    """too few open files allowed"""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    setup.opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    return setup.node()


@fault("killed drivers", "note", "of their processes still run", "kill ")
def killed_driver(setup):
    """processes that a killed driver left"""
    session = setup.short / f"{SESSION_PREFIX}abcd"
    (session / "r").mkdir(parents=True)
    (session / OWNER_FILE).write_text(f"{platform.node()} {ended_process_id()}")
    leader = setup.opened.enter_context(start_raylet(session))
    wait_for(lambda: len(session_processes(session)) == 2)
    setup.opened.callback(leader.wait)
    for process in session_processes(session):
        setup.opened.callback(process.send_signal, signal.SIGKILL)
    return setup.node()


@fault("memory", "wrong", "1.0 GB", "free memory, or raise the limit")
def little_memory(setup):
    """too little memory (a recorded reading)"""
    return {"here": {"memory": 1e9}}


@fault("GPUs", "wrong", "torch sees 0", "install a driver for torch's CUDA")
def unseen_gpu(setup):
    """a GPU that torch does not see (a recorded reading)"""
    return {"here": {"GPUs": {"listed": ["NVIDIA L4, 23034 MiB, 580.95"], "torch": 0}}}


@fault("MLflow", "wrong", "", "start the server")
def silent_server(setup):
    """MLflow's server down"""
    silent = setup.opened.enter_context(socket.socket())
    silent.bind(("127.0.0.1", 0))
    uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
    return {"here": run_probes({"MLflow": lambda: mlflow_versions(uri)})}


@fault("MLflow", "note", "3.16.0, ours 3.17.2", "use the same version on both sides")
def other_server(setup):
    """MLflow's server of another version (a recorded reading)"""
    return {"here": {"MLflow": ("3.16.0", "3.17.2")}}


# ------------------------------------------------------------ the cluster


def two_nodes(subject, first, second):
    return {"n1": {subject: first}, "n2": {subject: second}, "n3": {subject: first}}


@fault("token", "wrong", "0644", "chmod 600")
def open_token(setup):
    """a token that others can read"""
    (setup.folder / "token").write_text("secret")
    (setup.folder / "token").chmod(0o644)
    setup.patch.setenv("RAY_AUTH_MODE", "token")
    setup.patch.setenv("RAY_AUTH_TOKEN_PATH", str(setup.folder / "token"))
    return {"here": {"token": token_mode()}}


@fault("token", "wrong", "none", "RAY_AUTH_MODE=token")
def no_token(setup):
    """a cluster without a token"""
    setup.patch.delenv("RAY_AUTH_MODE", raising=False)
    return {"here": {"token": token_mode()}}


@fault("same token", "wrong", "", "copy one token to every node")
def two_tokens(setup):
    """another token on one node"""
    digests = []
    for token in ("first", "second"):
        setup.patch.setenv("RAY_AUTH_TOKEN", token)
        digests.append(probes.token_digest("key"))
    return two_nodes("same token", *digests)


@fault("clock", "wrong", "-90.0 s", "set the clock")
def wrong_clock(setup):
    """a wrong clock (a recorded reading)"""
    return two_nodes("clock", 0.1, -90.0)


@fault("torch", "wrong", "2.8.0", "install the same versions everywhere")
def mixed_versions(setup):
    """mixed versions of a library (a recorded reading)"""
    return two_nodes("torch", "2.9.0+cu130", "2.8.0")


@fault("code", "wrong", "", "bring every node to the same commit")
def other_code(setup):
    """other code on one node (a recorded reading)"""
    return two_nodes("code", probes.package_digest(), "0123456789ab")


@fault("weights", "wrong", "", "on every node")
def other_weights(setup):
    """other weights on one node (a recorded reading)"""
    return two_nodes("weights", "aaaa", "bbbb")


@fault("dataset animals, test", "wrong", "has no test split", "copy the same dataset to the same folder on every node")
def dataset_of_one_node(setup):
    """a dataset that one node lacks"""
    whole = setup.data()["here"]
    shutil.rmtree(setup.animals / "test")
    return {"n1": whole, "n2": setup.data()["here"], "n3": whole}


@fault("images of animals, val", "note", "", "rsync -a")
def other_times(setup):
    """files copied without their times"""
    whole = setup.data()["here"]
    for file in setup.animals.rglob("*.png"):
        os.utime(file, (1, 1))
    return {"n1": whole, "n2": setup.data()["here"], "n3": whole}


@fault("joined", "wrong", "127.0.0.3 has not joined", "start the node")
def missing_node(setup):
    """a node of the cluster file that has not joined"""
    cluster = {"provider": {"type": "local", "head_ip": "127.0.0.2", "worker_ips": ["127.0.0.3"]}}
    return {"driver": {"joined": missing_nodes(cluster, ["127.0.0.2"])}}


@fault("CHANGE in line 2", "wrong", "head_ip: 192.0.2.10", "put your own value into this line")
def open_value(setup):
    """an address of the cluster file that is still the example's"""
    return {"driver": dict(open_values("# CHANGE: your addresses\nhead_ip: 192.0.2.10\n"))}


# ------------------------------------------------------------ model and data


@fault("weights", "wrong", "nowhere.pt", "name weights that can be read with --model")
def missing_weights(setup):
    """a weights file that does not exist"""
    setup.spec = replace(setup.spec, model=f"ViT-S-16-alt:{setup.folder / 'nowhere.pt'}")
    return setup.data()


@fault("weights", "wrong", "wrong.pt", "name weights that can be read with --model")
def wrong_weights(setup):
    """a weights file without weights"""
    (setup.folder / "wrong.pt").write_text("not weights")
    setup.spec = replace(setup.spec, model=f"ViT-S-16-alt:{setup.folder / 'wrong.pt'}")
    return setup.data()


@fault("weights", "wrong", "small.pt", "name weights that can be read with --model")
def weights_of_another_model(setup):
    """weights of another model"""
    write_weights(setup.folder / "small.pt")
    setup.spec = replace(setup.spec, model=f"ViT-B-16:{setup.folder / 'small.pt'}")
    return setup.data()


@fault("dataset file", "wrong", "animals is not there", "correct the dataset's name, folder")
def missing_folder(setup):
    """a dataset's folder that does not exist"""
    shutil.rmtree(setup.animals)
    return setup.data()


@fault("dataset file", "wrong", "unknown dataset 'anmals'", "correct the dataset's name")
def unknown_dataset(setup):
    """a dataset that is not known"""
    setup.datasets = ["anmals"]
    return setup.data()


@fault("dataset animals, test", "wrong", "has no test split", "doctor --datasets lists what splits lack")
def missing_split(setup):
    """no test split"""
    shutil.rmtree(setup.animals / "test")
    return setup.data()


@fault("dataset animals, test", "wrong", "the test split is empty", "doctor --datasets lists what splits lack")
def empty_split(setup):
    """a test split without images"""
    for file in (setup.animals / "test").rglob("*.png"):
        file.unlink()
    return setup.data()


def describe_by_split_file(setup, change):
    """Describe the animals by a split file that a function has changed; return the readings."""
    rows = {}
    for split in ("val", "test"):
        rows[split] = []
        for label, name in enumerate(("cat", "dog")):
            rows[split] += [[f"{split}/{name}/{number}.png", label, name] for number in range(4)]
    change(rows)
    (setup.folder / "split.json").write_text(json.dumps(rows))
    setup.dataset_file("mine: {layout: split_json, images: animals, split_file: split.json}\n")
    return setup.data()


@fault("dataset mine, test", "wrong", "1 of 8 images are not in", "folder or split file")
def missing_image(setup):
    """an image of the test split that does not exist"""
    (setup.animals / "test/dog/2.png").unlink()
    return describe_by_split_file(setup, lambda rows: None)


@fault("dataset mine, test", "wrong", "label 1 is both 'dog' and 'cat'", "correct the dataset's name, folder or split")
def other_class_order(setup):
    """another order of classes in the test split"""

    def swap(rows):
        for row in rows["test"]:
            row[1] = 1 - row[1]

    return describe_by_split_file(setup, swap)


@fault("files of animals, test", "wrong", "8 of 8 images opened, 1 cannot be read", "replace these files")
def damaged_image(setup):
    """an image of the test split that cannot be read"""
    (setup.animals / "test/cat/2.png").write_bytes(b"no image")
    return setup.data()


@fault("files of animals, val", "wrong", "Permission denied", "replace these files")
def protected_image(setup):
    """an image that this user may not read"""
    (setup.animals / "val/cat/2.png").chmod(0)
    with without_root_rights():
        return setup.data()


@fault("classes of animals, test", "note", "1 of 2 without images: dog", "add images of these classes")
def empty_class(setup):
    """a class without images in the test split"""
    shutil.rmtree(setup.animals / "test/dog")
    return setup.data()


@fault("accuracy on shuffled", "wrong", "images classified correctly", "class names and labels have the same order")
def shuffled_names(setup):
    """class names in another order than the labels"""
    write_zoo(setup.folder)
    setup.spec = replace(setup.spec, dataset_file=str(setup.folder / "zoo.yaml"))
    setup.datasets, setup.splits = ["shuffled"], ["test"]
    return setup.data()


@fault("methods and prompts", "wrong", "method mine (mine.py:", "correct the method, prompt, metric or plugin")
def random_method(setup):
    """a plugin's method that is not deterministic"""
    setup.plugin(Case("method", "logits = logits + torch.randn(1)", "", ""))
    setup.choices = setup.choices._replace(methods=("mine",))
    return setup.data()


@fault("methods and prompts", "wrong", "has not ended after 1 s", "correct the method")
def endless_method(setup):
    """a plugin's method that never ends"""
    setup.plugin(Case("method", "while True:\n    time.sleep(0.01)", "", ""))
    setup.choices = setup.choices._replace(methods=("mine",), plugin_seconds=1.0)
    return setup.data()


@fault("methods and prompts", "wrong", "it must not draw random numbers", "metric or plugin")
def random_metric(setup):
    """a plugin's metric that is not deterministic"""
    setup.plugin(Case("metric", "return random.random()", "", ""))
    return setup.data()


@fault("methods and prompts", "wrong", "nowhere.safetensors", "correct the method, prompt")
def missing_prompt(setup):
    """a prompt's file that does not exist"""
    setup.choices = setup.choices._replace(prompts=(TextSource("nowhere.safetensors"),))
    return setup.data()


# ------------------------------------------------------------ sound setups


def embedded(setup):
    """the embedded sets"""
    setup.datasets = ["scenes", "letters"]
    return setup.data()


def limited(setup):
    """--limit 4 on embedded sets"""
    setup.datasets, setup.spec = ["scenes", "digits"], replace(setup.spec, limit=4)
    return setup.data()


def two_classes(setup):
    """two classes of the user's own images, as NAME=FOLDER"""
    return setup.data()


def tiny_dataset(setup):
    """one image of each class and split"""
    shutil.rmtree(setup.animals)
    draw_animals(setup.animals, per_class=1)
    return setup.data()


def split_file(setup):
    """own images with a split file"""
    return describe_by_split_file(setup, lambda rows: None)


def own_folders(setup):
    """own images described by a dataset file"""
    setup.dataset_file("mine: {layout: folders, images: animals}\n")
    return setup.data()


def known_dataset(setup):
    """a dataset of the paper below the data root"""
    build_coop(setup.folder / "data", "pets")
    setup.spec, setup.datasets = replace(setup.spec, data_root=str(setup.folder / "data")), ["pets"]
    return setup.data()


def new_user(setup):
    """a new user's home, without a cache, a token or a proxy"""
    setup.spec = replace(setup.spec, cache=None)
    setup.patch.setenv("XDG_CACHE_HOME", str(setup.folder / "home/.cache"))
    with without_root_rights():
        return setup.node()


def company_proxy(setup):
    """a proxy with exceptions for this machine"""
    setup.patch.setenv("http_proxy", "http://proxy:3128")
    setup.patch.setenv("no_proxy", "localhost,127.0.0.1")
    return setup.node()


def folder_of_dead_driver(setup):
    """a folder that a killed driver left, without processes"""
    session = setup.short / f"{SESSION_PREFIX}abcd"
    session.mkdir()
    (session / OWNER_FILE).write_text(f"{platform.node()} {ended_process_id()}")
    return setup.node()


def equal_nodes(setup):
    """three equal nodes with builds of torch for different devices"""
    readings = setup.node()["here"] | {"token": "0600", "same token": "a", "clock": 0.2}
    other = readings | {"torch": f"{readings['torch'].partition('+')[0]}+cu130"}
    return {"n1": readings, "n2": other, "n3": readings}


def sound_plugin(setup):
    """a plugin that keeps its contract"""
    setup.plugin(Case("method", "pass", "", ""))
    setup.choices = setup.choices._replace(methods=("mine", "tpt"))
    return setup.data()


SOUND = (
    embedded,
    limited,
    two_classes,
    tiny_dataset,
    split_file,
    own_folders,
    known_dataset,
    new_user,
    company_proxy,
    folder_of_dead_driver,
    equal_nodes,
    sound_plugin,
)


@pytest.fixture
def setup(tmp_path, monkeypatch):
    with ExitStack() as opened:
        yield Setup(tmp_path, monkeypatch, opened)


def false_alarms(judged, subject):
    """Return the wrong findings that do not concern the planted fault."""
    alarms = []
    for finding in judged:
        related = finding.subject == subject or finding.subject in OF_THIS_MACHINE
        # a dataset that cannot be opened causes further findings
        if finding.state == "wrong" and not related and finding.subject.partition(" ")[0] != "dataset":
            alarms.append(finding)
    return alarms


def finding_of(fault, judged):
    """Return the finding about a fault, or None."""
    for finding in judged:
        if finding.subject == fault.subject and finding.state == fault.state and fault.text in finding.text:
            return finding
    return None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.title.replace(" ", "-"))
def test_exactly_the_planted_fault_is_found_with_its_remedy(setup, fault):
    found = findings(fault.plant(setup))
    finding = finding_of(fault, found)
    assert finding is not None, "\n".join(f"{other.subject}: {other.state}, {other.text}" for other in found)
    assert fault.remedy in finding.remedy
    assert not false_alarms(found, fault.subject)


@pytest.mark.parametrize("plant", SOUND, ids=lambda plant: plant.__doc__.replace(" ", "-"))
def test_a_sound_setup_gives_no_alarm(setup, plant):
    assert not false_alarms(findings(plant(setup)), "")


@pytest.mark.slow  # clones the repository and runs the command there
def test_a_fresh_checkout_gives_no_alarm(tmp_path):
    subprocess.run(["git", "clone", "-q", ROOT, tmp_path / "clone"], check=True)
    words = [sys.executable, "-m", "fpp_sweep.doctor", "--space", "smoke"]
    env = environment(tmp_path) | {"PYTHONPATH": str(tmp_path / "clone")}
    done = subprocess.run(words, cwd=tmp_path / "clone", env=env, capture_output=True, text=True, timeout=LONG)
    wrong = [line for line in done.stdout.splitlines() if re.search(r"  wrong  ", line)]
    assert not [line for line in wrong if not line.startswith(OF_THIS_MACHINE)], done.stdout + done.stderr


def print_table():
    found = right = 0
    for fault in FAULTS:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch, ExitStack() as opened:
            judged = findings(fault.plant(Setup(Path(folder), patch, opened)))
            finding = finding_of(fault, judged)
        is_right = finding is not None and fault.remedy in finding.remedy
        found += finding is not None
        right += is_right
        alarms = false_alarms(judged, fault.subject)
        print(f"{fault.title:60} found {finding is not None}, remedy right {is_right}, other alarms {len(alarms)}")
    alarms = 0
    for plant in SOUND:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch, ExitStack() as opened:
            alarms_of_setup = false_alarms(findings(plant(Setup(Path(folder), patch, opened))), "")
        alarms += len(alarms_of_setup)
        print(f"sound: {plant.__doc__:53} false alarms {len(alarms_of_setup)}")
    print(
        f"{len(FAULTS)} faults: {found} found, {right} remedies right; {len(SOUND)} sound setups: {alarms} false alarms"
    )


if __name__ == "__main__":
    print_table()
