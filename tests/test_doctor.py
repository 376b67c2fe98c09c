"""`python -m fpp_sweep.doctor`: judgement of readings, cluster files, and real Ray nodes with planted faults."""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from fpp_sweep import doctor
from fpp_sweep.checks import probes
from fpp_sweep.checks.checks import CHECKS, MAX_CLOCK_OFFSET, REQUIRED, check_clock, findings
from fpp_sweep.checks.cluster_file import missing_nodes
from fpp_sweep.checks.data_probes import all_readings, class_counts, data_readings
from fpp_sweep.checks.finding_table import finding_table
from fpp_sweep.checks.guessing import images_needed, looks_like_guessing
from fpp_sweep.checks.probes import run_probes
from fpp_sweep.core.datasets import open_dataset
from fpp_sweep.spec import control_groups
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.process import cores
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.doctor_target import Target, target_of
from fpp_sweep.sweep.inspection import readings_by_machine
from tests.kit.processes import ROOT, environment, killed_at_end, start_tune
from tests.kit.waiting import LONG, wait_for
from tests.workers.test_nodes import HEAD, node, room

CLOUD, ONPREM = ROOT / "cluster.yaml", ROOT / "cluster-onprem.yaml"


# --- checks of readings


def states(subject, *readings):
    """Return the state of each node's reading."""
    nodes = {f"n{index}": {subject: reading} for index, reading in enumerate(readings)}
    return [finding.state for finding in sorted(findings(nodes), key=lambda finding: finding.node)]


@pytest.mark.parametrize(
    ("subject", "readings", "expected"),
    [
        ("python", ("3.12.16", "3.12.15", "3.12.16", "3.9.1"), ["ok", "wrong", "ok", "wrong"]),
        ("torch", ("2.9.0+cpu", "2.9.0+cu130", "2.10.0"), ["ok", "ok", "wrong"]),
        ("images of pets", ("a", "b", "a"), ["ok", "note", "ok"]),
        ("dataset pets", ("a", {"failed": "none"}, "a"), ["ok", "wrong", "ok"]),
        ("clock", (1.0, -3.0, 61.0, -61.0), ["ok", "note", "wrong", "wrong"]),
        ("token", ("environment", "0600", "0644", "0640", "none"), ["ok", "ok", "wrong", "wrong", "wrong"]),
        ("token", ("0700", "0400", "0604", "0610"), ["ok", "ok", "wrong", "wrong"]),
        ("memory", (5e9, 3e9, 1e9), ["ok", "note", "wrong"]),
        ("MLflow", (("3.17.2", "3.17.2"), ("3.16.0", "3.17.2")), ["ok", "note"]),
        ("joined", ([], ["10.0.0.2 has not joined"]), ["ok", "wrong"]),
        ("cluster file", ([], ["line 3: head_ip: 192.0.2.10"]), ["ok", "wrong"]),
        ("ray", ("1.13.0",), ["wrong"]),
        ("numpy", ("1.20.0", "2.3.1"), ["wrong", "wrong"]),
    ],
)
def test_a_reading_is_compared_with_those_of_the_other_nodes(subject, readings, expected):
    assert states(subject, *readings) == expected


def test_a_disk_needs_room_and_some_speed():
    good = {"folder": "/cache", "free": 10**11, "speed": 10**8}
    bad = [good | {"free": 10**9}, good | {"free": 10**7}, good | {"speed": 10**5}]
    assert states("cache", good, *bad) == ["ok", "note", "wrong", "note"]
    full, slow = findings({"full": {"cache": bad[1]}, "slow": {"cache": bad[2]}})
    assert full.remedy.startswith("make room")
    assert slow.remedy == "use a faster disk: workers wait for it"


def test_gpus_that_torch_does_not_see_are_wrong_and_different_gpus_are_a_note():
    l4 = {"listed": ["NVIDIA L4, 23034 MiB, 580.95"], "torch": 1, "no_gpu": ""}
    h100 = {"listed": ["NVIDIA H100, 81559 MiB, 580.95"], "torch": 1, "no_gpu": ""}
    assert states("GPUs", l4, l4 | {"torch": 0}) == ["ok", "wrong"]
    assert states("GPUs", l4, h100) == ["note", "note"]


def write_nvidia_smi(folder, text, monkeypatch):
    """Write a program called nvidia-smi, and put its folder first in the search path."""
    (folder / "bin").mkdir()
    (folder / "bin/nvidia-smi").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "bin/nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("text", "state", "found"),
    [
        (
            "echo NVIDIA-SMI has failed: no driver.; echo Install it.; exit 9",
            "note",
            "NVIDIA-SMI has failed: no driver.",
        ),
        ("echo No devices were found; exit 6", "note", "No devices were found"),
        ("echo Driver/library version mismatch; exit 18", "wrong", "nvidia-smi: Driver/library version mismatch"),
        ("exec sleep 100", "wrong", "nvidia-smi: no answer in 1 s"),
    ],
)
def test_a_gpu_tool_that_fails_says_why(tmp_path, monkeypatch, text, state, found):
    write_nvidia_smi(tmp_path, text, monkeypatch)
    monkeypatch.setattr(probes, "GPU_SECONDS", 1)
    (finding,) = findings({"here": run_probes({"GPUs": probes.gpus})})
    assert (finding.state, finding.text) == (state, found)


@pytest.mark.parametrize(
    ("setting", "is_checked"), [("device=auto", True), ("device=cpu", False), ("gpus_per_worker=0", False)]
)
def test_gpus_are_checked_only_for_a_sweep_that_may_use_them(tmp_path, monkeypatch, setting, is_checked):
    write_nvidia_smi(tmp_path, "exit 18", monkeypatch)
    target = target_of(ROOT / "search_spaces/smoke.yaml", [f"work.{setting}"], Options())
    assert ("GPUs" in all_readings(target.worker, None, (), ())) is is_checked


@pytest.mark.parametrize(("correct", "images", "classes", "state"), [
    (15, 64, 100, "ok"),  # as a real model reaches on a hard dataset
    (1, 64, 100, "wrong"),
    (6, 10, 10, "ok"),
    (2, 10, 10, "note"),  # ten images are too few to recognise a model that fits
    (30, 64, 2, "note"),
    (100, 200, 2, "wrong"),
    (2, 4, 2, "note"),  # as with --limit 4
])  # fmt: skip
def test_an_accuracy_of_guessing_is_wrong_only_with_enough_images(correct, images, classes, state):
    assert states("accuracy on pets", {"correct": correct, "images": images, "classes": classes}) == [state]


def test_a_note_on_accuracy_has_the_needed_number_of_images():
    (note,) = findings({"here": {"accuracy on pets": {"correct": 2, "images": 10, "classes": 10}}})
    assert note.text == f"2 of 10 images classified correctly, 1 by guessing; {images_needed(10)} images would tell"


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_the_needed_number_of_images_separates_a_fitting_model_from_guessing(classes):
    """The fitting model's accuracy lies a third of the way from guessing to 100 %."""
    images, draws = images_needed(classes), np.random.default_rng(0)
    share = 1 / classes
    guessed = draws.binomial(images, share, 20_000)
    fitting = draws.binomial(images, share + (1 - share) / 3, 20_000)
    assert np.mean([looks_like_guessing(int(hits), images, classes) for hits in fitting]) <= 0.05
    assert np.mean([looks_like_guessing(int(hits), images, classes) for hits in guessed]) >= 0.998


def test_classes_without_images_are_a_note_and_files_that_cannot_be_read_an_error():
    counts = {"opened": 32, "images": 400, "problems": [], "may_skip": False}
    bad = counts | {"problems": ["cat/1.jpg: not an image", "cat/2.jpg: not an image"]}
    assert states("classes of pets, test", {"classes": 2, "empty": []}, {"classes": 2, "empty": ["cat"]}) == [
        "ok",
        "note",
    ]
    many = {"classes": 90, "empty": [f"class {number}" for number in range(40)]}
    (finding,) = findings({"here": {"classes of pets, test": many}})
    assert re.fullmatch(r"40 of 90 without images: class 0, class 1, .*, \.\.\.", finding.text)
    (finding,) = findings({"here": {"files of pets, test": bad}})
    assert finding.state == "wrong"
    assert finding.text == "32 of 400 images opened, 2 cannot be read: cat/1.jpg: not an image"
    assert "--verify" in finding.remedy


def test_remedies_on_a_single_machine_mention_no_other_node():
    missing = {"dataset pets, test": {"failed": "no folder pets"}, "weights": {"failed": "no such file"}}
    for finding in findings({"here": missing}):
        assert "node" not in finding.remedy
    for finding in findings({"n1": missing, "n2": missing}):
        assert "every node" in finding.remedy


def draw_animals(folder):
    """Write four images of each of two classes for both splits that a sweep reads."""
    draws = np.random.default_rng(0)
    for split in ("val", "test"):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for number in range(4):
                pixels = draws.integers(0, 255, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")


def test_a_folder_given_as_a_dataset_is_checked(tmp_path):
    draw_animals(tmp_path / "photos")
    datasets = [f"mine={tmp_path / 'photos'}"]
    spec = WorkerSpec(model="tiny", datasets=tuple(datasets), cache=str(tmp_path / "cache"), threads=1)
    judged = {
        finding.subject: finding for finding in findings({"here": data_readings(spec, datasets, ["val", "test"])})
    }
    assert judged["files of mine, test"].text == "8 of 8 images opened"
    assert not [finding for finding in judged.values() if finding.state == "wrong"]


def test_both_splits_of_a_sweep_are_checked_and_faults_of_the_test_split_are_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw_animals(tmp_path / "animals")
    (tmp_path / "animals.yaml").write_text("animals: {layout: folders, images: animals}\n")
    spec = WorkerSpec(
        model="tiny", dataset_file=str(tmp_path / "animals.yaml"), cache=str(tmp_path / "cache"), threads=1
    )
    sound = findings({"here": data_readings(spec, ["animals"], ["val", "test"])})
    assert not [finding for finding in sound if finding.state == "wrong"], sound
    subjects = {finding.subject for finding in sound}
    assert {
        "files of animals, val",
        "files of animals, test",
        "classes of animals, test",
        "accuracy on animals, val",
        "accuracy on animals, test",
    } <= subjects
    (tmp_path / "animals" / "test" / "cat" / "2.png").write_bytes(b"no image")
    faulty = findings({"here": data_readings(spec, ["animals"], ["val", "test"])})
    assert [finding.subject for finding in faulty if finding.state == "wrong"] == ["files of animals, test"]
    shutil.rmtree(tmp_path / "animals" / "test")
    missing = findings({"here": data_readings(spec, ["animals"], ["val", "test"])})
    assert [finding.subject for finding in missing if finding.state == "wrong"] == ["dataset animals, test"]


def test_a_probe_that_fails_is_a_finding_with_its_reason_and_remedy():
    def missing():
        raise OSError("no such disk")

    readings = run_probes({"cache": missing, "memory": lambda: 5e9})
    failed, fine = findings({"here": readings})
    assert (failed.state, failed.text, failed.remedy) == ("wrong", "no such disk", CHECKS["cache"].remedy)
    assert (fine.state, fine.text) == ("ok", "5.0 GB")


def test_every_requirement_of_a_sweeps_start_has_a_check():
    assert set(REQUIRED) <= set(CHECKS)


def test_the_table_joins_equal_findings_and_has_remedies_below():
    nodes = {name: {"python": "3.12.1", "memory": 5e9} for name in ("n1", "n2")}
    nodes["n2"]["memory"] = 1e9
    assert finding_table(findings(nodes), 2).splitlines() == [
        "node  what    state  found",
        "all   python  ok     3.12.1",
        "n1    memory  ok     5.0 GB",
        "n2    memory  wrong  1.0 GB",
        "                     free memory, or raise the limit of the user, job or container",
    ]


def test_a_clock_is_wrong_only_beyond_the_greatest_offset():
    assert check_clock(0.0, []).state == "ok"
    for offset in (MAX_CLOCK_OFFSET, -MAX_CLOCK_OFFSET):
        assert check_clock(offset, []).state == "note"
        assert check_clock(1.01 * offset, []).state == "wrong"


def test_classes_without_images_are_counted_and_named():
    dataset = SimpleNamespace(classes=("cat", "dog", "eel"), labels=np.array([0, 2, 2]))
    assert class_counts(dataset) == {"classes": 3, "empty": ["dog"]}


# --- the cores of a container


@pytest.fixture
def control_group(tmp_path, monkeypatch):
    """Return a folder for the files of this process's control group, `job` of version 2 and of version 1."""
    groups = tmp_path / "groups"
    groups.write_text("4:cpu,cpuacct:/job\n0::/job\n0::/step:1\n")
    monkeypatch.setattr(control_groups, "OWN_GROUPS", groups)
    monkeypatch.setattr(control_groups, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "quotas"),
    [
        ({}, set()),
        ({"job/cpu.max": "max 100000\n"}, set()),
        ({"job/cpu.max": "150000 100000\n"}, {1.5}),
        ({"job/cpu.max": "max 100000\n", "cpu.max": "50000 100000\n"}, {0.5}),  # of the group around it
        ({"step:1/cpu.max": "150000 100000\n"}, {1.5}),  # the name of a group may have a colon
        ({"cpu/job/cpu.cfs_quota_us": "-1\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, set()),
        ({"cpu/job/cpu.cfs_quota_us": "250000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, {2.5}),
    ],
)
def test_the_quotas_of_control_groups_are_read(control_group, files, quotas):
    for name, text in files.items():
        (control_group / name).parent.mkdir(parents=True, exist_ok=True)
        (control_group / name).write_text(text)
    assert {*control_groups.cpu_quotas()} == quotas


@pytest.mark.parametrize(("quota", "count"), [("50000", 1), ("150000", 2), ("800000", 4), ("max", 4)])
def test_a_part_of_a_core_counts_as_a_core(control_group, monkeypatch, quota, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    (control_group / "cpu.max").write_text(f"{quota} 100000")
    assert cores() == count


def test_the_quota_of_a_real_control_group_counts():
    group = Path("/sys/fs/cgroup/cpu") / f"fpp_sweep-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("60000")
        (group / "cpu.cfs_period_us").write_text("100000")
    except OSError:
        pytest.skip("needs root and control groups of version 1")
    try:
        program = "from fpp_sweep.spec.process import cores; print(cores())"
        enter = f'echo $$ > {group}/tasks && exec "$0" -c "$1"'
        done = subprocess.run(["sh", "-c", enter, sys.executable, program], capture_output=True, text=True, cwd=ROOT)
        assert done.stdout == "1\n", done.stderr
    finally:
        group.rmdir()


# --- the cluster file


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "is not there"),
        (b"# caf\xe9\n", "is not UTF-8 text: byte 5"),
        (b"provider: [", "is not valid YAML: while parsing a flow node"),
        (b"work: {}\n", "has no `provider`; name a file of Ray's launcher"),
    ],
)
def test_a_cluster_file_that_cannot_be_read_is_refused_before_anything_is_checked(tmp_path, capsys, content, problem):
    file = tmp_path / "cluster.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=f"^cluster file {file} {re.escape(problem)}"):
        doctor.main(["--cluster-file", str(file)])
    assert capsys.readouterr().out == ""


def test_nodes_of_the_cluster_file_that_have_not_joined_are_listed():
    onprem = {"provider": {"type": "local", "head_ip": "127.0.0.2", "worker_ips": ["127.0.0.3", "127.0.0.4"]}}
    assert missing_nodes(onprem, ["127.0.0.2", "127.0.0.4"]) == ["127.0.0.3 has not joined"]
    cloud = {"provider": {"type": "aws"}, "available_node_types": {"head": {}, "gpu": {"min_workers": 2}}}
    assert missing_nodes(cloud, ["a", "b"]) == ["2 of 3 nodes have joined"]
    assert missing_nodes(cloud, ["a", "b", "c"]) == []


# --- real nodes


SPACE = """
params: {fpp.gamma1: {low: 0.1, high: 10, log: true}}
search: {trials: 1, split: test}
work: {dataset_file: zoo.yaml, datasets: [zoo], baselines: [zero_shot], workers: 1}
"""
FAULTY_STARTUP = """
import os, resource, sys, time
if "default_worker.py" in " ".join(sys.orig_argv):
    real = time.time
    time.time = lambda: real() - 600
    resource.setrlimit(resource.RLIMIT_DATA, (1_400_000_000, resource.RLIM_INFINITY))
"""
MOUNT_FAULTS = 'mount -t tmpfs tmpfs {hidden} && mount -t tmpfs -o size=64k tmpfs {cache} && ulimit -n 512 && exec "$@"'


def write_zoo(folder):
    """Write the embedded scenes as a user's dataset; a second dataset has its classes in another order."""
    scenes = open_dataset("scenes", "test").head(60)
    for sample, label in zip(scenes.ids, scenes.labels, strict=True):
        file = folder / "zoo" / "test" / f"n{label:02}" / f"{sample.replace('/', '_')}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        scenes.source.image(sample).save(file)
    names = [scenes.classes[label] for label in sorted({*scenes.labels.tolist()})]
    lines = [
        f"{name}: {{layout: folders, images: {'hidden/' * (name == 'hidden')}zoo, classes: {order}}}"
        for name, order in (("zoo", names), ("shuffled", [*names[1:], names[0]]), ("hidden", names))
    ]
    (folder / "zoo.yaml").write_text("\n".join(lines))


def write_weights(path):
    from open_clip import get_model_config
    from open_clip.model import CLIP

    torch.save(CLIP(**get_model_config("ViT-S-16-alt")).state_dict(), path)


def write_token(path, text, mode):
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
    for name, value in write_token(tmp_path / "token", token, 0o600).items():
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
            **write_token(tmp_path / "open-token", token, 0o644),
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
        third = {("127.0.0.4", what) for what in ("code", "clock", "cache", "memory", "token", "dataset hidden, test")}
        assert found == third | {
            ("127.0.0.2, 127.0.0.3, 127.0.0.4", "accuracy on shuffled, test"),
            ("driver", "MLflow"),
            ("driver", "joined"),
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


def test_on_a_cluster_the_driver_has_the_readings_of_all_nodes_beside_its_own(monkeypatch):
    nodes = {"10.0.0.2": {"python": "3.11"}}, {"room": {"workers": 2}}
    monkeypatch.setattr("fpp_sweep.sweep.inspection._readings_on_cluster", lambda *_: nodes)
    target = Target(worker=WorkerSpec(model="tiny"), options=Options(address="127.0.0.1:6379"))
    readings = readings_by_machine(target, None)
    assert list(readings) == ["driver", "10.0.0.2"]
    assert readings["driver"]["clock"] == 0.0
    assert readings["driver"]["room"] == {"workers": 2}
