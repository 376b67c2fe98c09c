"""The command that runs at the end of a sweep, as a real process; its failures do not affect the sweep."""

import json

import pytest

from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.sweep import driver
from fpp_sweep.sweep.plan import command_words
from tests.kit.processes import SMALL_SPACE
from tests.kit.records import build_sweep


@pytest.fixture
def folder(tmp_path):
    return build_sweep(tmp_path / "made", report=False)


def test_the_command_gets_the_state_and_the_front_as_json(folder, tmp_path):
    received = tmp_path / "received.json"
    driver.notify(f"""sh -c 'cat > "{received}"'""", folder)
    message = json.loads(received.read_text())
    assert (message["state"], message["sweep"]) == ("finished", str(folder.path))
    ((name, values),) = message["front"].items()
    assert list(values.values()) == folder.trial(name).values


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("false", "Command '['false']' returned non-zero exit status 1."),
        ("sleep 1000", "Command '['sleep', '1000']' timed out after"),
        ("no-such-command --now", "[Errno 2] No such file"),
    ],
)
def test_a_command_that_fails_or_hangs_is_noted_and_ended(folder, command, line, capsys, monkeypatch):
    monkeypatch.setattr(driver, "NOTIFY_TIMEOUT", 0.5)
    driver.notify(command, folder)
    assert capsys.readouterr().err.startswith(f"note: search.notify: {line}")


@pytest.mark.parametrize("command", ["no-such-command --now", "'"])
def test_a_command_that_cannot_be_run_is_refused(command):
    with pytest.raises(InputError, match=r"^search\.notify: "):
        command_words(command)


def test_the_command_is_not_in_the_record_which_others_may_receive():
    space = parse_space(SMALL_SPACE, "small.yaml", ["search.notify=curl https://hooks/mine"])
    assert space.search.notify == "curl https://hooks/mine"
    assert "hooks" not in json.dumps(space.plain())
