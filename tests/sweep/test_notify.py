"""The command that is notified of events, run as a real process; its failures do not affect the sweep."""

import json

import pytest

from fpp_sweep.space.reading import parse_space
from fpp_sweep.sweep import notify
from fpp_sweep.sweep.notify import Notifier
from tests.kit.processes import SMALL_SPACE


def test_the_command_gets_each_event_as_json_in_order(tmp_path):
    received = tmp_path / "received.jsonl"
    notifier = Notifier(f"""sh -c 'cat >> "{received}"; echo >> "{received}"'""", tmp_path / "sweep", ())
    notifier.send("new front", trial="trial-0001", front={"trial-0001": {"accuracy": 60.0}})
    notifier.send("finished")
    notifier.close()
    notifier.send("finished")  # an event after the close, as a second Ctrl-C may cause, is dropped
    sweep = {"sweep": str(tmp_path / "sweep")}
    assert [json.loads(line) for line in received.read_text().splitlines()] == [
        {"event": "new front", **sweep, "trial": "trial-0001", "front": {"trial-0001": {"accuracy": 60.0}}},
        {"event": "finished", **sweep},
    ]


@pytest.mark.parametrize("command", [None, "false", "true"])  # the command `true` reads no input
def test_a_command_that_fails_or_reads_nothing_does_not_disturb_the_sweep(command, tmp_path, capsys):
    notifier = Notifier(command, tmp_path, ())
    for _ in range(3):
        notifier.send("trial failed", reason="x" * 10**6)
    notifier.close()
    assert capsys.readouterr().err == ""


def test_a_command_that_hangs_is_ended_and_not_run_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(notify, "TIME_LIMIT", 0.1)
    notifier = Notifier(f"sh -c 'echo >> {tmp_path}/begun; exec sleep 1000'", tmp_path, ())
    for _ in range(3):
        notifier.send("new front")
    notifier.close()
    assert (tmp_path / "begun").read_text() == "\n"
    assert "it is not run again" in capsys.readouterr().err


def test_the_command_is_not_recorded_because_it_may_hold_a_secret():
    space = parse_space(SMALL_SPACE, "small.yaml", ["search.notify=curl https://hooks/secret"])
    assert space.search.notify == "curl https://hooks/secret"
    assert "secret" not in json.dumps(space.plain())
