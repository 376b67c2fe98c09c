"""Messages about a session that Ray cannot start."""

import pytest
import ray

from fpp_sweep.spec.errors import MachineError
from fpp_sweep.workers import ray_session


def test_rays_own_error_is_the_reason_if_its_services_have_logged_none(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("no session\nand advice")

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(MachineError, match=r"^Ray does not start \(no session\); free processors, memory or disk"):
        ray_session.start(str(tmp_path))
