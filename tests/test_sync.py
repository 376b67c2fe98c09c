import os
import subprocess
import sys
from pathlib import Path

import pytest

from fpp_sweep.spec.errors import InputError
from fpp_sweep.sync import main
from fpp_sweep.tracking.view import view_key
from tests.sweeps import build_sweep
from tests.tracking.stores import free_port, rows

ROOT = Path(__file__).parent.parent


def test_a_folder_that_is_no_sweep_is_refused(tmp_path):
    with pytest.raises(InputError, match="not a sweep's folder"):
        main([str(tmp_path)])


def test_a_server_that_is_not_there_is_refused(tmp_path):
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    with pytest.raises(InputError, match="connection refused"):
        main([str(folder.path), "--tracking-uri", f"http://127.0.0.1:{free_port()}"])


@pytest.mark.slow
def test_the_command_delivers_quietly_and_says_how_to_look(tmp_path):
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    command = [sys.executable, "-m", "fpp_sweep.sync", str(folder.path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first, second = (
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert first.stdout.splitlines() == [
        "perturb-1: 5 records brought up to date, 5 of them new",
        f"see them: mlflow ui --backend-store-uri sqlite:///{tmp_path}/mlflow.db",
        f"          http://127.0.0.1:5000/#/experiments/1/runs?viewStateShareKey={view_key(folder.info())}"
        "&compareRunsMode=CHART",
    ]
    assert second.stdout.startswith("perturb-1: 0 records")
    assert first.stderr == second.stderr == ""
    assert rows(tmp_path / "mlflow.db", "select count(*) from runs") == [(5,)]
