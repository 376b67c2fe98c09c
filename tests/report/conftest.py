"""A sweep whose trials are clearly different, with its statistics."""

import pytest

from fpp_sweep.records.answer import statistics_of
from tests.kit.measured import FAR_APART, World, write_measured_sweep


@pytest.fixture(scope="session")
def far(tmp_path_factory):
    folder = write_measured_sweep(tmp_path_factory.mktemp("sweeps") / "far", World(1000), FAR_APART, ("val", "test"))
    return folder.info(), statistics_of(folder, folder.info(), folder.trials())
