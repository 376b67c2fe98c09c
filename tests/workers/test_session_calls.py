"""Parts of a Ray session that need no Ray."""

import os
from types import SimpleNamespace

from fpp_sweep.workers import session


def test_standard_error_is_silent_in_the_block_only(capfd):
    with session._silence_stderr():
        os.write(2, b"of compiled code\n")
    os.write(2, b"afterwards\n")
    assert capfd.readouterr().err == "afterwards\n"


def test_calls_on_every_node_have_the_time_limit_of_the_caller(monkeypatch):
    calls = []
    ray_session = SimpleNamespace(on_every_node=lambda *call, **named: calls.append((call, named)))
    monkeypatch.setattr(session, "_import_ray_session", lambda: ray_session)
    session.on_every_node(len, "text", env={"A": "1"}, seconds=7.0)
    assert calls == [((len, "text"), {"env": {"A": "1"}, "seconds": 7.0})]
