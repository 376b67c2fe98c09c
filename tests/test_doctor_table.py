"""Planted faults and sound setups, and the findings of `doctor`, with real files, folders, disks and processes.

A few faults of clusters and GPUs are recorded readings. `python -m tests.test_doctor_table` prints the table.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fpp_sweep.checks import probes
from fpp_sweep.checks.checks import findings
from fpp_sweep.checks.cluster_file import missing_nodes
from fpp_sweep.checks.data_probes import data_readings
from fpp_sweep.checks.probes import node_readings, run_probes, token_mode
from fpp_sweep.core.datasets import custom_datasets, open_dataset
from fpp_sweep.core.models.loading import load
from fpp_sweep.space.reading import parse_space
from fpp_sweep.space.space import Space
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.doctor_target import Target
from fpp_sweep.sweep.inspection import mlflow_versions, readings_by_machine
from fpp_sweep.sweep.plan import splits_of_space
from fpp_sweep.sweep.start_checks import plan_reading
from fpp_sweep.sweep.worker_spec import worker_spec
from fpp_sweep.trial import worker_model
from tests.kit.datasets import build_coop
from tests.kit.disks import mounted
from tests.kit.processes import ROOT, environment
from tests.kit.rights import without_root_rights
from tests.kit.waiting import LONG
from tests.test_doctor import write_weights, write_zoo

load_once = cache(load)
OTHERS_SETTINGS = (  # variables of the machine of the test that doctor judges
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "FPP_SWEEP_CACHE", "TMPDIR", "TEMP", "TMP"),
)
# Findings that may concern the machine of the test itself.
OF_THIS_MACHINE = ("memory",)


class Setup:
    """A machine and a sweep without faults in a folder; a fault changes some part."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, opened: ExitStack) -> None:
        self.folder, self.patch, self.opened = folder, patch, opened
        self.short = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="d", dir="/tmp")))
        (folder / "home").mkdir()
        patch.setenv("HOME", str(folder / "home"))
        patch.setenv("RAY_TMPDIR", str(self.short))
        for name in OTHERS_SETTINGS:
            patch.delenv(name, raising=False)
        patch.setattr(worker_model, "load", load_once)
        patch.chdir(folder)
        self.animals = folder / "animals"
        draw_animals(self.animals)
        self.datasets = [f"animals={self.animals}"]
        self.spec = WorkerSpec(model="tiny", cache=str(folder / "cache"), threads=1, device="cpu")
        self.methods, self.prompt = ["zero_shot", "tpt"], "a photo of a"
        self.overrides: list[str] = []  # of keys of the space

    def node(self) -> dict[str, Any]:
        return {"here": node_readings(self.spec, None)}

    def data(self) -> dict[str, Any]:
        spec = replace(self.spec, datasets=tuple(self.datasets))
        space = self.space()
        return {"here": data_readings(spec, self.datasets, splits_of_space(space), partial(plan_reading, space))}

    def space(self) -> Space:
        work: dict[str, Any] = {"datasets": self.datasets, "baselines": []}
        for key in ("model", "data_root", "dataset_file", "limit", "cache", "on_bad_image"):
            work[key] = getattr(self.spec, key)
        document = {
            "params": {"method": self.methods},
            "base": {"prompt": self.prompt},
            "search": {"trials": 1, "include_published": False},
            "work": work,
        }
        return parse_space(json.dumps(document), "mine.yaml", self.overrides)

    def sweep(self) -> dict[str, Any]:
        """Return all readings of `doctor --space`."""
        space = self.space()
        spec = replace(worker_spec(space, gpus=0.0), threads=1)
        return readings_by_machine(Target(worker=spec, options=Options(), space=space), None)

    def dataset_file(self, text: str) -> None:
        (self.folder / "mine.yaml").write_text(text)
        self.spec = replace(self.spec, dataset_file=str(self.folder / "mine.yaml"))
        self.datasets = ["mine"]

    def small_disk(self, size: str) -> Path:
        """Mount a small disk of this size below the short folder and return its path."""
        return self.opened.enter_context(mounted(self.short / "disk", f"size={size}"))


def fill(folder: Path) -> None:
    """Write to a disk until it is full."""
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def write_token(setup: Setup, mode: int) -> None:
    """Write a token with this mode to a file, and let the environment name the file."""
    file = setup.folder / "token"
    file.write_text("secret")
    file.chmod(mode)
    setup.patch.setenv("RAY_AUTH_TOKEN_PATH", str(file))


def draw_animals(folder: Path, per_class: int = 4, names: Sequence[str] = ("cat", "dog")) -> None:
    draws = np.random.default_rng(0)
    for split in ("val", "test"):
        for name in names:
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


@fault("ray", "wrong", "1.13.0, but this package needs", "install ray")
def old_library(setup):
    """a library below the bounds of the package's metadata"""
    return {"here": setup.node()["here"] | {"ray": "1.13.0"}}


@fault("clock", "wrong", "-", "set the clock")
def old_clock(setup):
    """a clock that is years back"""
    setup.patch.setattr(probes.time, "time", lambda: 1.0e9)
    return setup.node()


@fault("MLflow", "wrong", "not reached through the proxy 127.0.0.1:9; add 127.0.0.1 to no_proxy", "")
def proxy_in_the_way(setup):
    """a proxy between doctor and MLflow on this machine"""
    setup.patch.setenv("http_proxy", "http://user:secret@127.0.0.1:9")
    return {"here": run_probes({"MLflow": lambda: mlflow_versions("http://127.0.0.1:5000")})}


@fault("session token", "wrong", "0644", "chmod 600")
def open_token_of_session(setup):
    """a token of this machine's sessions that others can read"""
    write_token(setup, 0o644)
    return setup.node()


@fault("session token", "note", "0644, which the next sweep changes", "chmod 600")
def open_default_token(setup):
    """Ray's own token, which others can read until the next sweep"""
    (setup.folder / "home/.ray").mkdir()
    (setup.folder / "home/.ray/auth_token").write_text("secret")
    return setup.node()


@fault("session token", "wrong", "No such file", "name one that has the token")
def missing_token(setup):
    """a token's file that does not exist"""
    setup.patch.setenv("RAY_AUTH_TOKEN_PATH", str(setup.folder / "nowhere"))
    return setup.node()


@fault("session token", "wrong", "token: is empty", "name one that has the token")
def empty_token(setup):
    """a token's file without a token"""
    write_token(setup, 0o600)
    (setup.folder / "token").write_text("\n")
    return setup.node()


@fault("session token", "note", "none", "unset RAY_AUTH_MODE")
def session_without_token(setup):
    """sessions without a token"""
    setup.patch.setenv("RAY_AUTH_MODE", "disabled")
    return setup.node()


@fault("cache", "wrong", "cache: Permission denied", "work.cache or FPP_SWEEP_CACHE")
def protected_cache(setup):
    """cache folder not writable"""
    (setup.folder / "cache").mkdir(mode=0o500)
    with without_root_rights():
        return setup.node()


@fault("cache", "wrong", "cache/features: Not a directory", "work.cache or FPP_SWEEP_CACHE")
def file_named_like_features(setup):
    """a file with the name of the folder of features"""
    (setup.folder / "cache").mkdir()
    (setup.folder / "cache/features").write_text("notes")
    return setup.node()


@fault("cache", "wrong", "cache/tasks: Permission denied", "allow writing")
def protected_results(setup):
    """folder of finished tasks not writable"""
    (setup.folder / "cache/tasks").mkdir(parents=True)
    (setup.folder / "cache/tasks").chmod(0o500)
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


@fault("memory", "wrong", "1.0 GB", "free memory, or raise the limit")
def little_memory(setup):
    """too little memory (a recorded reading)"""
    return {"here": {"memory": 1e9}}


@fault("GPUs", "wrong", "torch sees 0", "install a driver for torch's CUDA")
def unseen_gpu(setup):
    """a GPU that torch does not see (a recorded reading)"""
    return {"here": {"GPUs": {"listed": ["NVIDIA L4, 23034 MiB, 580.95"], "torch": 0, "no_gpu": ""}}}


@fault("sweeps", "wrong", "Not a directory", "name another folder with --out")
def file_named_like_sweeps(setup):
    """a file with the name of the folder of sweeps"""
    (setup.folder / "sweeps").write_text("notes")
    return setup.sweep()


@fault("MLflow", "wrong", "not usable as MLflow's database", "name another store")
def unusable_default_store(setup):
    """another file with the name of MLflow's default database"""
    (setup.folder / "mlflow.db").write_text("notes" * 100)
    return setup.sweep()


def read_store(file: Path) -> dict[str, Any]:
    return {"here": run_probes({"MLflow": lambda: mlflow_versions(f"sqlite:///{file}")})}


@fault("MLflow", "wrong", "Permission denied; allow this user to read and write it", "name another store")
def protected_store(setup):
    """MLflow's database not writable"""
    file = setup.folder / "mlflow.db"
    sqlite3.connect(file).execute("CREATE TABLE runs (id)").connection.close()
    file.chmod(0o444)
    with without_root_rights():
        return read_store(file)


@fault("MLflow", "wrong", "mlflow.db: Read-only file system", "name another store")
def store_on_a_read_only_disk(setup):
    """MLflow's database on a read-only disk"""
    disk = setup.small_disk("1m")
    sqlite3.connect(disk / "mlflow.db").execute("CREATE TABLE runs (id)").connection.close()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    return read_store(disk / "mlflow.db")


@fault("MLflow", "wrong", "start it, or give another URI", "name another store")
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
    write_token(setup, 0o644)
    setup.patch.setenv("RAY_AUTH_MODE", "Token")
    return {"here": {"token": token_mode()}}


@fault("token", "wrong", "none", "RAY_AUTH_MODE=token")
def no_token(setup):
    """a cluster without a token"""
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


@fault("torch", "wrong", "2.10.0", "install the same versions everywhere")
def mixed_versions(setup):
    """mixed versions of a library (a recorded reading)"""
    return two_nodes("torch", "2.9.0+cu130", "2.10.0")


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


# ------------------------------------------------------------ model and data


def image_at(setup: Setup, split: str, position: int) -> str:
    """Return the file of an image by its position in the order in which a sweep reads the animals."""
    custom = custom_datasets(setup.datasets, None)
    return open_dataset("animals", split, None, custom).ids[position].removeprefix(f"{split}/")


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


@fault("files of animals, val", "wrong", "8 of 8 images opened, 1 cannot be read", "replace these files")
def damaged_image_of_the_final_stage(setup):
    """an image that the search does not read, and the final stage does"""
    setup.spec = replace(setup.spec, limit=4)
    (setup.animals / "val" / image_at(setup, "val", 4)).write_bytes(b"no image")
    return setup.data()


@fault("files of animals, test", "note", "8 of 8 images opened, 1 cannot be read", "work.on_bad_image=skip")
def skipped_image(setup):
    """a damaged image in a sweep that leaves such images out"""
    setup.spec = replace(setup.spec, on_bad_image="skip")
    (setup.animals / "test/cat/2.png").write_bytes(b"no image")
    return setup.data()


@fault("files of animals, test", "wrong", "8 of 8 images opened, 8 cannot be read", "replace these files")
def only_damaged_images(setup):
    """a test split whose images are all damaged"""
    setup.spec = replace(setup.spec, on_bad_image="skip")
    for file in (setup.animals / "test").rglob("*.png"):
        file.write_bytes(b"no image")
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


@fault("splits of mine", "wrong", "val and test share 8 images, such as val/cat/0.png", "out of one of the two splits")
def shared_split(setup):
    """a split file whose test split is the validation split"""
    return describe_by_split_file(setup, lambda rows: rows.update(test=rows["val"]))


@fault("names of mine", "note", "several classes are called cat", "give each class its own name")
def one_name_of_two_classes(setup):
    """two classes of one name"""
    setup.dataset_file("mine: {layout: folders, images: animals, classes: {dog: Cat}}\n")
    return setup.data()


@fault("size of pets, test", "note", "6 images, but 3669 were published", "restore the published split")
def part_of_a_published_split(setup):
    """a test split with a part of the published images"""
    return known_dataset(setup)


@fault("accuracy on shuffled, test", "wrong", "images classified correctly", "class names belong together")
def shuffled_names(setup):
    """class names in another order than the labels"""
    write_zoo(setup.folder)
    setup.spec = replace(setup.spec, dataset_file=str(setup.folder / "zoo.yaml"))
    setup.datasets, setup.overrides = ["shuffled"], ["search.split=test"]
    return setup.data()


def draw_scenes(setup: Setup, shift_of_test: int = 0) -> None:
    """Write 100 scenes of each split as a user's dataset; in the test split, labels are shifted by some classes."""
    for split in ("val", "test"):
        scenes = open_dataset("scenes", split).head(100)
        for sample, label in zip(scenes.ids, scenes.labels, strict=True):
            shift = shift_of_test if split == "test" else 0
            name = scenes.classes[(label + shift) % len(scenes.classes)]
            file = setup.folder / "photos" / split / name / f"{sample}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            scenes.source.image(sample).save(file)
    setup.dataset_file("mine: {layout: folders, images: photos}\n")


@fault("accuracy on mine, test", "wrong", "images classified correctly", "class names belong together")
def labels_of_other_images(setup):
    """a test split whose labels belong to other images"""
    draw_scenes(setup, shift_of_test=1)
    return setup.data()


@fault("files of mine, val", "wrong", "1 cannot be read", "replace these files")
def damaged_image_among_the_first(setup):
    """a damaged image that only the check of the accuracy reads"""
    draw_scenes(setup)
    custom = custom_datasets([], setup.spec.dataset_file)
    (setup.folder / "photos" / open_dataset("mine", "val", None, custom).ids[1]).write_bytes(b"no image")
    readings = setup.data()
    assert not isinstance(readings["here"]["dataset mine, val"], dict)
    return readings


@fault("plan of the sweep", "wrong", "nowhere.safetensors", "correct the method, prompt")
def missing_prompt(setup):
    """a prompt's file that does not exist"""
    setup.prompt = "nowhere.safetensors"
    return setup.data()


# ------------------------------------------------------------ sweeps that `tune` refuses


@fault("plan of the sweep", "wrong", "use a shorter prompt or name", "correct the method, prompt, dataset")
def long_prompt(setup):
    """a prompt that is too long together with a class name"""
    setup.prompt = "word " * 71  # one class name has room after it
    shutil.rmtree(setup.animals)
    draw_animals(setup.animals, names=("cat", "a cat that has much longer hair than others"))
    return setup.data()


@fault("plan of the sweep", "wrong", "2 images are too few for a post-hoc map", "correct the method, prompt, dataset")
def few_images_for_a_map(setup):
    """too few images for a post-hoc map"""
    setup.spec, setup.overrides = replace(setup.spec, limit=2), ["work.posthoc=[temperature_val]"]
    return setup.data()


@fault("plan of the sweep", "wrong", "8 images are too few for a conformal threshold", "correct the method")
def few_images_for_a_threshold(setup):
    """too few images for a conformal threshold"""
    setup.overrides = ["work.columns=[aps_90]"]
    return setup.data()


@fault("room for workers", "wrong", "this machine has 0 GPUs", "lower the setting")
def no_gpu_for_workers(setup):
    """workers on GPUs on a machine without one"""
    setup.patch.setenv("CUDA_VISIBLE_DEVICES", "")
    setup.overrides = ["work.gpus_per_worker=0.5"]
    return setup.sweep()


@fault("room for workers", "wrong", "this machine has 0 GPUs", "lower the setting")
def no_gpu_for_the_device(setup):
    """device=cuda on a machine without a GPU"""
    setup.patch.setenv("CUDA_VISIBLE_DEVICES", "")
    setup.overrides = ["work.device=cuda"]
    return setup.sweep()


@fault("start of the sweep", "wrong", "workers get theirs from Ray", "correct the setting")
def numbered_device(setup):
    """a single GPU for workers on Ray"""
    setup.overrides = ["work.device=cuda:1"]
    return setup.sweep()


@fault("room for workers", "wrong", "work.cpus_per_worker=1000: this machine has", "lower the setting")
def no_cores_for_a_worker(setup):
    """more cores for a worker than the machine has"""
    setup.overrides = ["work.cpus_per_worker=1000", "work.threads=1"]
    return setup.sweep()


# ------------------------------------------------------------ sound setups


def embedded(setup):
    """the embedded sets"""
    setup.datasets = ["scenes", "letters"]
    return setup.sweep()


def limited(setup):
    """--limit 4 on embedded sets"""
    setup.datasets, setup.spec = ["scenes", "digits"], replace(setup.spec, limit=4)
    return setup.sweep()


def two_classes(setup):
    """two classes of the user's own images, as NAME=FOLDER"""
    return setup.sweep()


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


def token_in_the_environment(setup):
    """a home that cannot be written, with the token in the environment"""
    (setup.folder / "home").chmod(0o500)
    setup.patch.setenv("RAY_AUTH_TOKEN", "secret")
    with without_root_rights():
        return setup.node()


def token_file_elsewhere(setup):
    """no home, with a token's file that only its owner can read"""
    setup.patch.setenv("HOME", str(setup.folder / "nowhere"))
    write_token(setup, 0o700)
    return setup.node()


def new_machine(setup):
    """a sweep without a cache, a home with settings or a GPU; doctor makes no folder"""
    setup.patch.setenv("CUDA_VISIBLE_DEVICES", "")
    setup.spec = replace(setup.spec, cache=str(setup.folder / "new/cache"))
    before = sorted(setup.folder.rglob("*"))
    readings = setup.sweep()
    assert sorted(setup.folder.rglob("*")) == before
    assert {"start of the sweep", "room for workers", "plan of the sweep"} <= readings["here"].keys()
    return readings


def unread_image(setup):
    """a damaged image that --limit never reads"""
    setup.spec, setup.overrides = replace(setup.spec, limit=4), ["search.finalists.seeds=1"]
    (setup.animals / "test" / image_at(setup, "test", 7)).write_bytes(b"no image")
    return setup.data()


def image_left_out(setup):
    """a damaged image in a sweep that leaves such images out"""
    setup.spec = replace(setup.spec, on_bad_image="skip")
    (setup.animals / "val" / image_at(setup, "val", 0)).write_bytes(b"no image")
    return setup.sweep()


def sweep_for_gpus(setup):
    """a sweep in a precision that only GPUs have, checked on this machine's CPU"""
    spec = replace(setup.spec, precisions=("tf32",), datasets=tuple(setup.datasets))
    return {"here": data_readings(spec, setup.datasets, ["val"])}


def equal_nodes(setup):
    """three equal nodes with builds of torch for different devices"""
    readings = setup.node()["here"] | {"token": "0600", "same token": "a", "clock": 0.2}
    other = readings | {"torch": f"{readings['torch'].partition('+')[0]}+cu130"}
    return {"n1": readings, "n2": other, "n3": readings}


SOUND = (
    embedded,
    limited,
    two_classes,
    tiny_dataset,
    split_file,
    own_folders,
    known_dataset,
    new_user,
    token_in_the_environment,
    token_file_elsewhere,
    new_machine,
    unread_image,
    image_left_out,
    sweep_for_gpus,
    equal_nodes,
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
        if subject == "MLflow":  # a sweep that cannot use its store does not start
            related = related or finding.subject == "start of the sweep"
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
