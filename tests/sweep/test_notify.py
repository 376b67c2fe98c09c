"""A command that is told of what happens: real processes, whose failures cost nothing."""

import json

import pytest

from fpp_sweep.space.reading import parse_space
from fpp_sweep.sweep import notify
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.notify import Notifier
from fpp_sweep.sweep.preflight import require_named
from tests.drivers import SMALL
from tests.sweep.test_sweep import space


def test_a_command_gets_each_event_as_json_in_order(tmp_path):
    heard = tmp_path / "heard.jsonl"
    notifier = Notifier(f"""sh -c 'cat >> "{heard}"; echo >> "{heard}"'""", tmp_path / "sweep")
    notifier.tell("new front", trial="trial-0001", front={"trial-0001": {"accuracy": 60.0}})
    notifier.tell("finished")
    notifier.close()
    notifier.tell("finished")  # a second Ctrl-C came
    sweep = {"sweep": str(tmp_path / "sweep")}
    assert [json.loads(line) for line in heard.read_text().splitlines()] == [
        {"event": "new front", **sweep, "trial": "trial-0001", "front": {"trial-0001": {"accuracy": 60.0}}},
        {"event": "finished", **sweep},
    ]


@pytest.mark.parametrize("command", [None, "false", "true"])  # `true` reads nothing
def test_a_command_that_fails_or_does_not_listen_is_nobodys_concern(command, tmp_path, capsys):
    notifier = Notifier(command, tmp_path)
    for _ in range(3):
        notifier.tell("trial failed", reason="x" * 10**6)
    notifier.close()
    assert capsys.readouterr().err == ""


def test_a_command_that_hangs_is_ended_and_not_run_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(notify, "PATIENCE", 0.1)
    notifier = Notifier(f"sh -c 'echo >> {tmp_path}/begun; exec sleep 1000'", tmp_path)
    for _ in range(3):
        notifier.tell("new front")
    notifier.close()
    assert (tmp_path / "begun").read_text() == "\n"
    assert "it is not run again" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["no-such-command --now", "'"])
def test_a_command_that_cannot_be_run_is_told_at_the_start(command, tmp_path, capsys):
    require_named(space(f"search.notify={json.dumps(command)}"), Options())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("note: search.notify: ")
    assert line.endswith("; nobody is notified")
    notifier = Notifier(command, tmp_path)
    notifier.tell("finished")
    notifier.close()


def test_a_command_which_may_hold_a_secret_is_not_recorded():
    space = parse_space(SMALL, "small.yaml", ["search.notify=curl https://hooks/secret"])
    assert space.search.notify == "curl https://hooks/secret"
    assert "secret" not in json.dumps(space.plain())
