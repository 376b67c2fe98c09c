"""MLflow databases for tests, and retries without pauses."""

import shutil

import pytest


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """An SQLite file with MLflow's tables and no rows; creating the tables takes seconds."""
    from fpp_sweep.tracking.stores import connect

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
    """Let MLflow repeat requests without pauses."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")
