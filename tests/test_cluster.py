"""The cluster files: Ray's launcher accepts them, and clusters made from them are secure and complete."""

import os
import re
import socket
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
CLOUD, ONPREM = ROOT / "cluster.yaml", ROOT / "cluster-onprem.yaml"
both_files = pytest.mark.parametrize("path", [CLOUD, ONPREM], ids=lambda path: path.stem)
COMMANDS = (
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)


def read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def start_command(path: Path, kind: str) -> str:
    (command,) = [line for line in read(path)[f"{kind}_start_ray_commands"] if "ray start" in line]
    return command


@pytest.fixture(scope="module")
def launcher():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("ray.autoscaler._private.util")


@both_files
def test_rays_launcher_accepts_the_file(launcher, path):
    prepared = launcher.prepare_config(read(path))
    launcher.validate_config(prepared)
    workers = [kind for kind in prepared["available_node_types"].values() if kind["max_workers"]]
    assert [(kind["min_workers"], kind["max_workers"]) for kind in workers] == [(0, 4) if path == CLOUD else (2, 2)]


@both_files
@pytest.mark.parametrize("kind", COMMANDS)
def test_commands_are_valid_bash_inside_the_launchers_wrapper(path, kind):
    for command in read(path)[kind]:
        wrapped = f"source ~/.bashrc; export OMP_NUM_THREADS=1 && ({command})"
        subprocess.run(["bash", "-n", "-c", wrapped], check=True, capture_output=True)


@both_files
def test_every_node_gets_the_token_and_every_process_requires_it(path):
    config = read(path)
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/fpp_cluster/auth_token"
    for kind in ("head", "worker"):
        before, _, _ = start_command(path, kind).partition("ray start")
        assert re.search(r"export [^;]*RAY_AUTH_MODE=token", before)
    # The shells of `ray exec` and `ray attach` are clients; they read .bashrc.
    (profile,) = [command for command in config["setup_commands"] if ".bashrc" in command]
    assert "chmod 600 ~/.ray/auth_token" in profile


@both_files
def test_a_new_shell_on_a_node_has_environment_token_mode_and_cache(path, tmp_path):
    (profile,) = [command for command in read(path)["setup_commands"] if ".bashrc" in command]
    (tmp_path / "fpp_cluster/env/bin").mkdir(parents=True)
    (tmp_path / ".ray").mkdir()
    token = tmp_path / ".ray/auth_token"
    token.write_text("0" * 64)
    (tmp_path / ".bashrc").write_text("export EARLIER=kept\n")
    clean = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    for _ in range(2):  # a node may be set up again
        subprocess.run(["bash", "-c", profile], env=clean, check=True)
    shown = subprocess.run(
        ["bash", "-c", '. ~/.bashrc; echo "$EARLIER $RAY_AUTH_MODE $FPP_SWEEP_CACHE ${PATH%%:*} $PYTHONPATH"'],
        env=clean,
        check=True,
        capture_output=True,
        text=True,
    )
    ours = [f"{tmp_path}/fpp_cluster/{command}" for command in ("cache", "env/bin", "project")]
    assert shown.stdout.split() == ["kept", "token", *ours]
    assert (tmp_path / ".bashrc").read_text().count("environment.sh") == 1
    assert token.stat().st_mode & 0o777 == 0o600


@both_files
def test_all_nodes_install_the_same_versions(path):
    config = read(path)
    assert config["worker_setup_commands"] == []
    assert config["setup_commands"] == read(CLOUD)["setup_commands"]
    assert config["file_mounts"] == read(CLOUD)["file_mounts"]
    install = "\n".join(config["setup_commands"])
    assert re.search(r"--python 3\.\d+\.\d+ ", install)  # Ray compares the patch version too
    assert "-r ~/fpp_cluster/versions.txt" in install
    assert "PYTHONPATH=~/fpp_cluster/project" in install


@both_files
@pytest.mark.parametrize("kind", ["head", "worker"])
def test_ray_starts_with_options_whose_defaults_would_be_wrong(path, kind):
    before, start, options = start_command(path, kind).partition("ray start")
    assert "unset OMP_NUM_THREADS" in before  # the launcher sets it to 1
    assert re.search(r"--object-store-memory=\d+", options)  # by default, Ray takes a share of the free memory
    assert start
    if kind == "head":
        assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in options
        assert ("RAY_enable_autoscaler_v2=0" in before) == (path == ONPREM)
    else:
        assert "--address=$RAY_HEAD_IP:6379" in options


@both_files
def test_no_service_listens_on_a_public_address(path):
    text = path.read_text()
    assert not re.search(r"0\.0\.0\.0|::(?!1)", text)
    assert "--dashboard-host=127.0.0.1" in start_command(path, "head")
    (mlflow,) = [command for command in read(path)["head_start_ray_commands"] if "mlflow server" in command]
    assert "--host 127.0.0.1 --port 5000" in mlflow
    allowed = re.search(r'--allowed-hosts "(.*?)"', mlflow)
    assert allowed
    assert {host.removesuffix(":*") for host in allowed[1].split(",")} == {"localhost", "127.0.0.1"}
    assert "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false" in mlflow


@both_files
def test_the_launcher_waits_for_mlflow_and_shows_its_log_if_it_does_not_answer(path, tmp_path):
    wait = read(path)["head_start_ray_commands"][-1]
    log = tmp_path / "fpp_cluster/mlflow/server.log"
    log.parent.mkdir(parents=True)
    log.write_text("Traceback\nOSError: no space left on device\n")

    def run(port):
        command = wait.replace("timeout 120", "timeout 1").replace("/5000", f"/{port}")
        return subprocess.run(
            ["bash", "-c", command], env=os.environ | {"HOME": str(tmp_path)}, capture_output=True, text=True
        )

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert run(port).returncode == 0
    failed = run(port)
    assert failed.returncode == 1
    assert failed.stdout.endswith("OSError: no space left on device\n")


def test_cloud_machines_start_on_demand_and_end_when_idle():
    config = read(CLOUD)
    worker = config["available_node_types"]["gpu_worker"]
    assert worker["min_workers"] == 0
    assert worker["max_workers"] == config["max_workers"]
    assert worker["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert (
        "InstanceMarketOptions" not in config["available_node_types"]["head"]["node_config"]
    )  # the head holds the sweeps, so it is no spot machine
    assert 0 < config["idle_timeout_minutes"] <= 30
    assert config["provider"]["cache_stopped_nodes"] is False
