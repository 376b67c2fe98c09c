"""The command `python -m fpp_sweep.sync`."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import runnable
from fpp_sweep.sweep.summary import summary_lines
from fpp_sweep.sync import main
from fpp_sweep.tracking.sync_state import STATE_FILE
from fpp_sweep.tracking.uri import connect
from tests.kit.records import build_sweep
from tests.kit.stores import as_sets, contents, free_port, rows

ROOT = Path(__file__).parent.parent


def test_a_folder_without_a_sweep_is_refused(tmp_path):
    with pytest.raises(InputError, match="not a sweep's folder"):
        main([str(tmp_path)])


def test_an_unreachable_server_is_refused(tmp_path):
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    with pytest.raises(InputError, match="connection refused"):
        main([str(folder.path), "--into", f"http://127.0.0.1:{free_port()}"])


@pytest.mark.parametrize("seconds", ["nan", "-5", "inf", "soon"])
def test_a_time_of_retries_that_makes_no_sense_is_refused(tmp_path, seconds):
    with pytest.raises(InputError, match="argument --retry-for: "):
        main([str(tmp_path), f"--retry-for={seconds}"])


def test_verify_restores_a_run_that_was_deleted_in_mlflow(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    main([str(folder.path)])
    ((run,),) = rows(tmp_path / "mlflow.db", "select run_uuid from runs where name like '0000%'")
    connect("sqlite:///mlflow.db").delete_run(run)
    main([str(folder.path)])
    deleted = "select count(*) from runs where lifecycle_stage = 'deleted'"
    assert rows(tmp_path / "mlflow.db", deleted) == [(1,)]
    capsys.readouterr()
    main([str(folder.path), "--verify"])
    assert rows(tmp_path / "mlflow.db", deleted) == [(0,)]
    assert "restored after deletion in MLflow: 0000 53/11.5" in capsys.readouterr().out


def test_verify_brings_back_what_a_restored_backup_of_mlflow_lacks(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = build_sweep(tmp_path / "perturb-1", trials=1, running_trials=(0,), baselines=(), state="running")
    main([str(folder.path)])
    backup = shutil.copyfile("mlflow.db", "backup.db")
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    main([str(folder.path)])
    complete = as_sets(contents(tmp_path / "mlflow.db"))
    shutil.copyfile(backup, "mlflow.db")
    (lost,) = tmp_path.glob("mlartifacts/**/metrics.csv")
    lost.unlink()
    (cut,) = tmp_path.glob("mlartifacts/**/front.csv")
    cut.unlink()
    cut.write_text("cut")
    main([str(folder.path), "--verify"])
    assert as_sets(contents(tmp_path / "mlflow.db")) == complete
    assert lost.is_file()
    assert cut.read_bytes() == (folder.report / "front.csv").read_bytes()


def test_a_copied_folder_needs_the_flag(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    main([str(folder.path)])
    copy = shutil.copytree(folder.path, tmp_path / "sent")
    with pytest.raises(InputError, match=r"belong to the folder .*perturb-1; say where it should go: --into"):
        main([str(copy)])
    main([str(copy), "--into", "sqlite:///mine.db"])
    assert rows(tmp_path / "mine.db", "select count(*) from runs") == [(2,)]
    assert "mine.db" in capsys.readouterr().out
    assert (copy / STATE_FILE).is_file()


def test_a_sweep_without_a_store_goes_on_in_the_one_of_the_last_sync(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = build_sweep(tmp_path / "evaluate-1", trials=1, baselines=())
    assert not folder.info().tracking_uri
    main([str(folder.path), "--into", "sqlite:///mine.db"])
    main([str(folder.path)])
    assert "evaluate-1: up to date" in capsys.readouterr().out
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    main([str(folder.path), "--verify"])
    assert [file.parent for file in tmp_path.rglob("m*.db")] == [tmp_path]


def test_the_store_of_a_received_sweep_must_be_named_once_only(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sender = "sqlite:////home/sender/mlflow.db"
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    folder.write_info(replace(folder.info(), tracking_uri=sender))
    with pytest.raises(InputError, match=f"you have not used its MLflow, {sender}, before; say where .*: --into"):
        main([str(folder.path)])
    main([str(folder.path), "--into", "sqlite:///mine.db"])
    capsys.readouterr()
    main([str(folder.path)])
    assert capsys.readouterr().out.startswith("perturb-1: up to date")
    command = runnable(f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/mine.db")
    assert f"MLflow      {command}" in list(summary_lines(folder))
    copy = shutil.copytree(folder.path, tmp_path / "sent")
    with pytest.raises(InputError, match="you have not used its MLflow"):
        main([str(copy)])


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
        f"          http://127.0.0.1:5000/#/experiments/1/runs/{run}",
    ]
    assert first.stdout.splitlines() == ["perturb-1: 5 runs brought up to date, 5 of them new", *where]
    unchanged = "perturb-1: up to date, nothing has changed since the last sync (--verify compares with MLflow)"
    assert second.stdout.splitlines() == [unchanged, *where]
    noise = [line for line in (first.stderr + second.stderr).splitlines() if not line.startswith("MLflow: ")]
    assert noise == []
    assert rows(tmp_path / "mlflow.db", "select count(*) from runs") == [(5,)]
