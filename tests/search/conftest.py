"""What all tests of studies share."""

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine


@pytest.fixture(scope="module", autouse=True)
def quick_disk():
    """Not to wait for the disk: power does not fail here."""

    @event.listens_for(Engine, "connect")
    def relax(connection, _):
        connection.execute("PRAGMA synchronous=OFF")

    yield
    event.remove(Engine, "connect", relax)
