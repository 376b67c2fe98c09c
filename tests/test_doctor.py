"""`python -m fpp_sweep.doctor`: on facts, on cluster files, and on real Ray nodes with faults that are planted."""

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

import pytest
import torch
import yaml

from fpp_sweep.checks.cluster_file import SHIPPED, missing_nodes, undecided
from fpp_sweep.checks.findings import judge
from fpp_sweep.checks.probes import cleaners, misnamed
from fpp_sweep.core.datasets import open_dataset
from tests.drivers import ROOT, ended, environment, started
from tests.waiting import LONG, wait_for
from tests.workers.test_nodes import HEAD, node, room

LISTEN = """
import socket, time
listener = socket.create_server(("0.0.0.0", 0))
print(listener.getsockname()[1], flush=True)
time.sleep(3600)
"""
CLOUD, ONPREM = ROOT / "cluster.yaml", ROOT / "cluster-onprem.yaml"


def wrong(findings):
    return {(found.node, found.what) for found in findings if found.state == "wrong"}


# --- what facts mean


def states(what, *values):
    nodes = {f"n{place}": {what: value} for place, value in enumerate(values)}
    return [found.state for found in sorted(judge(nodes), key=lambda found: found.node)]


@pytest.mark.parametrize(
    ("what", "values", "expected"),
    [
        ("python", ("3.12.16", "3.12.15", "3.12.16"), ["ok", "wrong", "ok"]),
        ("torch", ("2.9.0+cpu", "2.9.0+cu130", "2.8.0"), ["ok", "ok", "wrong"]),
        ("images of pets", ("a", "b", "a"), ["ok", "note", "ok"]),
        ("dataset pets", ("a", {"failed": "none"}, "a"), ["ok", "wrong", "ok"]),
        ("clock", (1.0, -3.0, 61.0, -61.0), ["ok", "note", "wrong", "wrong"]),
        ("token", ("environment", "0600", "0644", "0640", "none"), ["ok", "ok", "wrong", "wrong", "wrong"]),
        ("open files", (65536, 1024, 256), ["ok", "note", "wrong"]),
        ("memory", (5e9, 3e9, 1e9), ["ok", "note", "wrong"]),
        ("MLflow", (("3.17.2", "3.17.2"), ("3.16.0", "3.17.2")), ["ok", "note"]),
        ("joined", ([], ["10.0.0.2 has not joined"]), ["ok", "wrong"]),
        ("ports", ([], ["5000 (mlflow server)"]), ["ok", "note"]),
    ],
)
def test_a_fact_is_judged_beside_those_of_the_other_nodes(what, values, expected):
    assert states(what, *values) == expected


def test_a_disk_needs_room_and_some_speed():
    good = {"folder": "/cache", "free": 10**11, "speed": 10**8}
    assert states("cache", good, good | {"free": 10**9}, good | {"free": 10**7}, good | {"speed": 10**5}) == [
        "ok",
        "note",
        "wrong",
        "note",
    ]


def test_gpus_that_torch_does_not_see_are_wrong_and_different_ones_a_note():
    l4, h100 = "NVIDIA L4, 23034 MiB, 580.95", "NVIDIA H100, 81559 MiB, 580.95"
    assert states("GPUs", {"listed": [l4], "torch": 1}, {"listed": [l4], "torch": 0}) == ["ok", "wrong"]
    assert states("GPUs", {"listed": [l4], "torch": 1}, {"listed": [h100], "torch": 1}) == ["note", "note"]


@pytest.mark.parametrize(("right", "seen", "classes", "state"), [
    (15, 64, 100, "ok"),  # a hard dataset of a real model
    (1, 64, 100, "wrong"),
    (6, 10, 10, "ok"),
    (2, 10, 10, "wrong"),
    (30, 64, 2, "wrong"),
    (64, 64, 1, "ok"),  # one class: nothing to guess
])  # fmt: skip
def test_accuracy_that_guessing_reaches_is_wrong(right, seen, classes, state):
    assert states("accuracy on pets", {"right": right, "seen": seen, "classes": classes}) == [state]


def test_a_label_that_folder_or_file_contradicts_is_found():
    classes = ["american bulldog", "pug", "great dane"]
    assert misnamed(["american_bulldog/1.jpg", "pug/pug.jpg", "n02/x.jpg"], [0, 1, 2], classes) == []
    assert misnamed(["images/American_Bulldog_12.jpg"], [0], classes) == []
    assert misnamed(["a/1.jpg", "pug/1.jpg"], [0, 2], classes) == ["pug/1.jpg is labelled 'great dane'"]
    assert misnamed(["images/pug_77.jpg"], [0], classes) == ["images/pug_77.jpg is labelled 'american bulldog'"]


# --- the cluster file, and this machine


def test_every_value_marked_change_is_known_as_shipped_and_no_other():
    for path in (CLOUD, ONPREM):
        marks = [line for line in path.read_text().splitlines() if re.search("CHANGE(:|$)", line)]
        # one of them tells of a group of one's own, and needs no value
        assert len(undecided(path.read_text())) == sum("to narrow that" not in line for line in marks)
    assert {*undecided(CLOUD.read_text()), *undecided(ONPREM.read_text())} == {*SHIPPED}


def test_what_was_changed_is_decided_and_its_comment_may_stay():
    shipped = undecided(CLOUD.read_text())
    text = CLOUD.read_text().replace("region: us-west-2 ", "region: eu-central-1 ").replace("ami-" + "0" * 17, "ami-1")
    assert [value for value in shipped if value not in undecided(text)] == [
        "region: us-west-2",
        "ImageId: &image ami-00000000000000000",
    ]
    assert states("CHANGE", [], ["ssh_user: ubuntu"], shipped, undecided(ONPREM.read_text())) == [
        "ok",
        "note",
        "wrong",
        "wrong",
    ]


def test_nodes_of_the_cluster_file_that_have_not_joined():
    onprem = {"provider": {"type": "local", "head_ip": "127.0.0.2", "worker_ips": ["127.0.0.3", "127.0.0.4"]}}
    assert missing_nodes(yaml.safe_dump(onprem), ["127.0.0.2", "127.0.0.4"]) == ["127.0.0.3 has not joined"]
    cloud = {"provider": {"type": "aws"}, "available_node_types": {"head": {}, "gpu": {"min_workers": 2}}}
    assert missing_nodes(yaml.safe_dump(cloud), ["a", "b"]) == ["2 of 3 nodes have joined"]
    assert missing_nodes(yaml.safe_dump(cloud), ["a", "b", "c"]) == []


def test_rules_that_remove_files_are_found_where_systemd_applies_them(tmp_path):
    own, shipped = tmp_path / "own", tmp_path / "shipped"
    for folder in (own, shipped):
        folder.mkdir()
    (shipped / "tmp.conf").write_text("# a comment\nq /tmp 1777 root root 10d\nq /var/tmp 1777 root root 30d\n")
    (shipped / "x.conf").write_text("d /cache 0755 root root -\n")
    folders = [Path("/tmp/scratch"), Path("/cache")]
    assert cleaners(folders, [own, shipped], tmp_path) == ["/tmp/scratch after 10d"]
    assert cleaners(folders, [own, shipped], tmp_path / "none") == []
    (own / "tmp.conf").write_text("q /tmp 1777 root root -\n")
    assert cleaners(folders, [own, shipped], tmp_path) == []


# --- for real


SPACE = """
params: {fpp.gamma1: {low: 0.1, high: 10, log: true}}
search: {trials: 1, split: test}
work: {dataset_file: zoo.yaml, datasets: [zoo], baselines: [zero_shot], workers: 1}
"""
FAULTS = """
import os, resource, sys, time
if "default_worker.py" in " ".join(sys.orig_argv):
    real = time.time
    time.time = lambda: real() - 600
    resource.setrlimit(resource.RLIMIT_DATA, (1_400_000_000, resource.RLIM_INFINITY))
"""
HIDE = 'mount -t tmpfs tmpfs {hidden} && mount -t tmpfs -o size=64k tmpfs {cache} && ulimit -n 512 && exec "$@"'


def zoo(folder):
    """The embedded scenes as a user's own files, and a second time with classes in another order."""
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


def weights(path):
    from open_clip import get_model_config
    from open_clip.model import CLIP

    torch.save(CLIP(**get_model_config("ViT-S-16-alt")).state_dict(), path)


def token_file(path, text, mode):
    path.write_text(text)
    path.chmod(mode)
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path), "RAY_USAGE_STATS_ENABLED": "0"}


def doctor(folder, *words, space=("--space", "small.yaml")):
    """Exit status, the rows that are wrong as (node, what), and all that was printed."""
    start = [sys.executable, "-m", "fpp_sweep.doctor", *space, *words]
    env = {name: value for name, value in environment(folder).items() if name != "FPP_SWEEP_CACHE"}  # each node its own
    done = subprocess.run(start, cwd=folder, env=env, capture_output=True, text=True, timeout=LONG)
    # notes may be of the machine that the test runs on: a port of another's, little memory left
    rows = re.findall(r"^(\S.*?)  +(\S.*?)  +wrong  ", done.stdout, flags=re.M)
    return done.returncode, {*rows}, done.stdout + done.stderr


@pytest.mark.slow  # three nodes, four looks at them
def test_faults_that_are_planted_on_a_node_are_found_and_others_are_not(tmp_path, monkeypatch):
    if os.geteuid() or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("mounting a file system needs root")
    zoo(tmp_path)
    (tmp_path / "small.yaml").write_text(SPACE)
    hidden, cache = tmp_path / "hidden", tmp_path / "small-cache"
    for folder in (hidden, cache, tmp_path / "faults"):
        folder.mkdir()
    shutil.copytree(tmp_path / "zoo", hidden / "zoo")
    weights(hidden / "small.pt")
    other = tmp_path / "other"
    shutil.copytree(ROOT / "fpp_sweep", other / "fpp_sweep")
    with (other / "fpp_sweep/spec/version.py").open("a") as file:
        file.write("\n# another commit\n")
    (tmp_path / "faults/sitecustomize.py").write_text(FAULTS)
    monkeypatch.delenv("FPP_SWEEP_CACHE", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    token = secrets.token_hex(32)
    for name, value in token_file(tmp_path / "token", token, 0o600).items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(prefix="nodes-", ignore_cleanup_errors=True) as scratch, ExitStack() as there:
        scratch = Path(scratch)
        own = {"PYTHONPATH": str(ROOT), "FPP_SWEEP_CACHE": str(tmp_path / "cache")}
        _, address = there.enter_context(node(scratch / "head", "127.0.0.2", *HEAD, env=own))
        join = f"--address={address}"
        there.enter_context(node(scratch / "second", "127.0.0.3", join, env=own))
        wait_for(lambda: room(address) == 2)

        healthy = doctor(tmp_path, "--address", address)
        assert healthy[:2] == (0, set()), healthy[2]

        faulty = {
            "PYTHONPATH": f"{tmp_path / 'faults'}{os.pathsep}{other}",
            "FPP_SWEEP_CACHE": str(cache),
            **token_file(tmp_path / "open-token", token, 0o644),
        }
        mounts = HIDE.format(hidden=hidden, cache=cache)
        before = ["unshare", "--mount", "sh", "-c", mounts, "sh"]
        there.enter_context(node(scratch / "third", "127.0.0.4", join, env=faulty, before=before))
        wait_for(lambda: room(address) == 3)
        listener = there.enter_context(
            ended(subprocess.Popen([sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True))
        )
        port = listener.stdout.readline().strip()
        nobody = there.enter_context(socket.socket())
        nobody.bind(("127.0.0.1", 0))
        own_addresses = ONPREM.read_text().replace("192.0.2.10", "127.0.0.2").replace("192.0.2.11", "127.0.0.3")
        (tmp_path / "cluster.yaml").write_text(own_addresses.replace("192.0.2.12", "127.0.0.9"))
        words = "--address", address, "--cluster-file", "cluster.yaml"
        words += "--tracking-uri", f"http://127.0.0.1:{nobody.getsockname()[1]}"
        status, found, told = doctor(tmp_path, *words, "--datasets", "zoo", "shuffled", "hidden")
        assert status == 1
        third = {
            ("127.0.0.4", what)
            for what in ("code", "clock", "cache", "memory", "open files", "token", "dataset hidden")
        }
        assert found == third | {
            ("127.0.0.2, 127.0.0.3, 127.0.0.4", "accuracy on shuffled"),
            ("driver", "MLflow"),
            ("driver", "joined"),
        }, told
        assert f"{port} (" in told
        assert "127.0.0.9 has not joined" in told
        assert re.search("driver +CHANGE +note +ssh_user: ubuntu; ssh_private_key", told)
        assert token not in told

        model = f"ViT-S-16-alt:{hidden / 'small.pt'}"
        status, found, told = doctor(tmp_path, "--address", address, "--model", model)
        assert status == 1
        assert ("127.0.0.4", "weights") in found, told
        assert not {("127.0.0.2", "weights"), ("127.0.0.3", "weights")} & found

        sweep = there.enter_context(ended(started(tmp_path, "--address", address, space=SPACE)))
        _, err = sweep.communicate(timeout=LONG)
    assert sweep.returncode == 2, err
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: 127.0.0.4: code ")
    assert not list((tmp_path / "sweeps").glob("*"))
