"""Secrets in messages: in addresses, in the environment, and in the texts of other libraries."""

import os
import re
import shlex
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fpp_sweep.spec.masking import masked, masked_lines
from fpp_sweep.spec.messages import command_line, printable, runnable, runnable_record

PARTS = st.sampled_from(["://", "sqlite", "?", "#", "@", "a", "me:pw", "\n", "x=1"])


def masked_by_patterns(text):
    """Mask addresses by patterns, which say what is secret, and take minutes for a long text."""
    text = re.sub(r"(?s)(?<!sqlite)://[^?#]*\?.*@.*", "://***", text)
    text = re.sub(r"(?s)(?<!sqlite)://.*@", "://***@", text)
    return re.sub(r"(?s)(?<!sqlite)(://[^?#]*)\?.*", r"\1?***", text)


@given(st.lists(PARTS, max_size=14).map("".join))
@example("http://a@b#x http://c?d@e")
@example("sqlite:///a?b@c")
@example("a://b#c?d@e://f?g")
def test_addresses_are_masked_as_the_patterns_say(text):
    assert masked(text) == masked_by_patterns(text)


@pytest.mark.parametrize("text", ["://", "@://", "?://", "://#", "://?", "://@", "token=", "Bearer "])
def test_a_long_text_of_a_received_record_is_masked(text):
    """A search that tries each pair of positions would take hours."""
    assert len(masked(text * 300_000)) <= len(text) * 300_000 + 3


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "api_token", "AWS_ACCESS_KEY_ID", "DB_PASS", "MYSQL_PWD", "GITHUB_PAT", "HF_TOKEN_2", "X_APIKEY"],
)
def test_values_of_secret_variables_are_masked(monkeypatch, name):
    monkeypatch.setenv(name, "abcdef\tghi")
    monkeypatch.setenv("LESS_TOKEN", "abcdef")  # the longer secret begins with it
    assert printable("it says abcdef\tghi\n") == "it says ***\\n"
    assert masked_lines("a\nit says abcdef\tghi\nb") == "a\nit says ***\nb"


def test_values_of_other_variables_are_shown(monkeypatch):
    for name in ("PWD", "OLDPWD", "HOME", "COMPASS", "KEYBOARD"):
        monkeypatch.setenv(name, "/home/someone")
    assert masked("in /home/someone") == "in /home/someone"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("url: /api?token=hunter2&x=1", "url: /api?token=***&x=1"),
        ("host=db password='hunter2' user=me", "host=db password='***' user=me"),
        ("host=db password=hunter2 user=me", "host=db password=*** user=me"),
        ("Authorization: Bearer abc.def-ghi==", "Authorization: Bearer ***"),
        ("class_token=off", "class_token=off"),
    ],
)
def test_secrets_that_are_named_in_a_text_are_masked(text, shown):
    assert masked(text) == shown


@pytest.mark.parametrize("word", ["c\nd", "it's\t\\n", "\x1b[31m$HOME", "\x85\u2028 caf\xe9", "name\udcff", "a b"])
def test_a_printed_command_is_one_line_that_a_shell_reads_back(word):
    """A name of a file may hold any characters, and bytes that are not UTF-8."""
    command = runnable(command_line("show", [word]))
    assert command.isprintable()
    last_word = ["bash", "-c", f'set -- {command}; printf %s "${{@: -1}}"']
    done = subprocess.run(last_word, capture_output=True, check=True)
    assert os.fsdecode(done.stdout) == word
    assert runnable_record(shlex.join(["fpp-sweep", "show", word])) == command


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ("fpp-sweep tune --space s.yaml; touch /tmp/evil", "tune --space 's.yaml;' touch /tmp/evil"),
        ("../../evil $(touch /tmp/evil)", "../../evil '$(touch' '/tmp/evil)'"),
        ("fpp-sweep tune --name it's", "'fpp-sweep tune --name it'\"'\"'s'"),
        ("", ""),
    ],
)
def test_a_recorded_command_is_printed_so_that_a_shell_runs_nothing_else(recorded, shown):
    assert runnable_record(recorded).endswith(shown)
