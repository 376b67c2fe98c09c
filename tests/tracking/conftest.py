import shutil

import pytest


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """MLflow's tables and nothing in them, which take seconds to create."""
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
