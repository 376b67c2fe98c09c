"""MLflow databases for tests, and short pauses between attempts."""

import shutil

import pytest


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """An SQLite file with MLflow's tables and no rows; creating the tables takes seconds."""
    from fpp_sweep.tracking.uri import connect

    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    connect(f"sqlite:///{path}")
    return path


@pytest.fixture
def database(tmp_path, empty_database):
    return shutil.copyfile(empty_database, tmp_path / "mlflow.db")


@pytest.fixture
def uri(database):
    return f"sqlite:///{database}"


@pytest.fixture
def quick_retries(monkeypatch):
    """Shorten the pauses between attempts to milliseconds."""
    monkeypatch.setattr("fpp_sweep.tracking.sync.FIRST_PAUSE", 0.001)
    monkeypatch.setattr("fpp_sweep.tracking.sync.LONGEST_PAUSE", 0.01)
    monkeypatch.setattr("fpp_sweep.tracking.sync.rest_after", lambda _: 0.0)
