"""The command that is notified of events, run as a real process; its failures do not affect the sweep."""

import json
from contextlib import suppress

import psutil
import pytest

from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.sweep import notify
from fpp_sweep.sweep.notify import Notifier, command_words
from tests.kit.processes import SMALL_SPACE
from tests.kit.waiting import wait_for


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
    monkeypatch.setattr(notify, "TIME_LIMIT", 0.5)
    script = f"echo >> {tmp_path}/begun; sleep 1000 & echo $! > {tmp_path}/child; wait"
    notifier = Notifier(f"sh -c '{script}' a-secret", tmp_path, ())
    for _ in range(3):
        notifier.send("new front")
    notifier.close()
    assert (tmp_path / "begun").read_text() == "\n"
    assert capsys.readouterr().err == "note: search.notify: took longer than 0.5 s; it is not run again\n"
    wait_for(lambda: not is_running(int((tmp_path / "child").read_text())))


def is_running(process_id):
    """Return whether a process has not ended; the test's machine may not collect orphans."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE
    return False


def test_a_slow_command_is_not_waited_for_once_for_each_event(tmp_path, monkeypatch):
    """The command waits for a file, which appears when the notifier has given up the events in the middle."""
    gate, begun, received = (tmp_path / name for name in ("gate", "begun", "received.jsonl"))
    script = f"touch {begun}; until [ -e {gate} ]; do sleep 0.01; done; cat >> {received}; echo >> {received}"
    notifier = Notifier(f"sh -c '{script}'", tmp_path, ())
    for event in ("first", "second", "third", "finished"):
        notifier.send(event)
    wait_for(begun.exists)
    monkeypatch.setattr(notify, "wait", lambda runs, seconds: None)
    monkeypatch.setattr(notify, "note", gate.write_text)
    notifier.close()
    assert gate.read_text() == "search.notify: the command is too slow; it was not run for 2 events"
    assert [json.loads(line)["event"] for line in received.read_text().splitlines()] == ["first", "finished"]


def test_messages_about_the_command_show_its_first_word_at_most():
    for command in ("missing-program --token a-secret", "curl 'a-secret"):
        with pytest.raises(InputError) as refusal:
            command_words(command)
        assert "a-secret" not in str(refusal.value)


def test_the_command_is_not_recorded_because_it_may_hold_a_secret():
    space = parse_space(SMALL_SPACE, "small.yaml", ["search.notify=curl https://hooks/secret"])
    assert space.search.notify == "curl https://hooks/secret"
    assert "secret" not in json.dumps(space.plain())
