"""The command `python -m fpp_sweep.sync`."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import runnable
from fpp_sweep.sweep.summary import summary_lines
from fpp_sweep.sync import main
from tests.kit.records import build_sweep
from tests.kit.stores import rows

ROOT = Path(__file__).parent.parent


def test_the_store_of_a_received_sweep_must_be_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    folder.write_info(replace(folder.info(), tracking_uri="sqlite:////home/sender/mlflow.db"))
    with pytest.raises(InputError, match=r"its MLflow is sqlite:////home/sender/mlflow\.db"):
        main([str(folder.path)])
    main([str(folder.path), "--into", "sqlite:///mine.db"])
    command = runnable(f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/mine.db")
    assert f"see them: {command}" in capsys.readouterr().out
    assert rows(tmp_path / "mine.db", "select count(*) from runs") == [(2,)]


def test_a_summary_names_the_run_or_else_the_command_that_does(tmp_path):
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    lines = list(summary_lines(folder, mlflow_links=["mlflow ui", "http://127.0.0.1:5000/#/x"]))
    assert lines[-2:] == ["MLflow      mlflow ui", "            http://127.0.0.1:5000/#/x"]
    assert list(summary_lines(folder))[-1].endswith(f"sync {folder.path}")


@pytest.mark.nightly
@pytest.mark.slow
def test_the_command_prints_only_the_result_and_the_links(tmp_path):
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    command = [sys.executable, "-m", "fpp_sweep.sync", str(folder.path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "check": True}
    first = subprocess.run(command, **options)
    second = subprocess.run(command, **options)
    ((run,),) = rows(tmp_path / "mlflow.db", "select run_uuid from runs where name = 'perturb-1'")
    where = [
        f"see them: {runnable(f'mlflow ui --backend-store-uri sqlite:///{tmp_path}/mlflow.db')}",
        f"          http://127.0.0.1:5000/#/experiments/1/runs/{run}?workflowType=machine_learning",
    ]
    assert first.stdout.splitlines() == ["perturb-1: 5 runs brought up to date, 5 of them new", *where]
    assert second.stdout.splitlines() == ["perturb-1: up to date, MLflow lacked nothing", *where]
    assert first.stderr + second.stderr == ""
    assert rows(tmp_path / "mlflow.db", "select count(*) from runs") == [(5,)]
