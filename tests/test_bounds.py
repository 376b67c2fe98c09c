"""Impossible numbers, names and files are refused at once, in one line that cannot control a terminal."""

import json
import subprocess
import sys

import pytest

from fpp_sweep import cache, doctor, evaluate, tune
from fpp_sweep.cli import run
from fpp_sweep.reproduce import __main__ as reproduce
from fpp_sweep.spec.errors import MAX_MESSAGE, escaped
from fpp_sweep.spec.messages import note
from tests.kit.processes import ROOT, environment, error_lines

HOSTILE = "\x1b[2Jgone\n\u202e\x9b31m"
COMMANDS = {"evaluate": evaluate, "tune": tune, "reproduce": reproduce, "cache": cache, "doctor": doctor}
NEEDED = {"tune": ["--space", str(ROOT / "search_spaces/smoke.yaml")], "reproduce": ["--table", "main"]}


def needed(command, words):
    """Return the words that a command cannot do without, unless they are given."""
    required = NEEDED.get(command, [])
    if required and required[0] in words:
        return []
    return required


FLAGS = {
    "evaluate": ["--limit", "--seed", "--workers"],
    "tune": ["--limit", "--seed", "--trials", "--workers"],
    "reproduce": ["--limit", "--seed", "--workers"],
}
AT_LEAST_ONE = {"--limit", "--trials", "--workers"}


def error_line(capsys, command, *words):
    """Return the one line with which a command refuses its input."""
    with pytest.raises(SystemExit) as ended:
        run(lambda: COMMANDS[command].main([*needed(command, words), *words]))
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = error_lines(err)
    assert line.startswith("error: ")
    assert line.isprintable()
    assert len(line) < MAX_MESSAGE + 100
    return line


NUMBERS = [(command, flag) for command, flags in FLAGS.items() for flag in flags]
WRONG_NUMBERS = ["-1", "0", "1e30", "nan", "inf", "-inf", "1" + 40 * "0", "", "0x10", "1" * 9999]


@pytest.mark.parametrize(("command", "flag"), NUMBERS)
def test_an_impossible_number_is_refused_with_the_name_of_its_flag(capsys, tmp_path, command, flag):
    for value in WRONG_NUMBERS:
        if value == "0" and flag not in AT_LEAST_ONE:
            continue
        line = error_line(capsys, command, f"{flag}={value}", "--out", str(tmp_path / "out"), "--datasets", "nope")
        assert "nope" not in line, value  # the error is about the number, not about the wrong dataset after it
        if 0 < len(value) < 100:
            assert line.startswith(f"error: {flag} {value}: "), line
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("tune", ["--set", f"{HOSTILE}=3"]),
        ("tune", ["--space", f"{HOSTILE}.yaml"]),
        ("tune", ["--plugin", HOSTILE]),
        ("evaluate", ["--data-root", HOSTILE, "--datasets", "dtd"]),
        ("evaluate", ["--prompt", f"{HOSTILE}/x.pt".replace(" ", "")]),
        ("evaluate", ["--" + HOSTILE]),
        ("cache", ["list", "--cache", HOSTILE]),
        ("doctor", ["--dataset-file", HOSTILE]),
        ("doctor", ["--datasets", "x" * 100_000]),
    ],
)
def test_characters_that_control_a_terminal_are_escaped(capsys, command, words):
    error_line(capsys, command, *words)


def test_notes_tables_and_errors_of_the_disk_are_escaped_too(capsys, tmp_path):
    note(f"left out: {HOSTILE}")
    with pytest.raises(SystemExit):
        run(lambda: (tmp_path / HOSTILE).read_text())
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2
    assert all(map(str.isprintable, err))
    from fpp_sweep.report.table import Table, to_text

    table = Table.of_strings(["dataset", "images"], [[HOSTILE, "3"]])
    first, second = to_text(table, width=1000).splitlines()
    assert second.isprintable()
    assert len(first) == len(second)
    assert escaped(escaped(HOSTILE)) == escaped(HOSTILE)


@pytest.mark.parametrize("flag", ["--space", "--config", "--plugin", "--dataset-file"])
def test_an_endless_file_is_refused_at_once(capsys, flag):
    assert "larger than 1 MiB" in error_line(capsys, "tune", flag, "/dev/zero")


WRONG_NAMES = [
    ("tune", ["--datasets", "dtd", "--data-root", "/nowhere"], "dtd: data root /nowhere is not there"),
    ("tune", ["--set", "base.anchor_prompt=/nowhere.pt"], "prompt file /nowhere.pt does not exist"),
    ("tune", ["--set", "objectives=[ece/dtd]"], "unknown dataset in metric ece/dtd: 'dtd'"),
    ("evaluate", ["--datasets", "eurosta"], "did you mean 'eurosat'"),
    ("evaluate", ["--prompt", "/usr"], "prompt file /usr is a folder; give one of its files"),
    ("evaluate", ["--set", "method=tpt"], "--set method=tpt: give --method instead"),
    ("evaluate", ["--workers", "2", "--set", "work.device=cuda:1"], "work.device: cuda:1 is one device"),
    ("reproduce", ["--data-root", "/nowhere", "--datasets", "dtd"], "dtd: data root /nowhere is not there"),
]

# This program runs a command with each list of words from its standard input, and prints the status, the outputs and
# the loaded heavy modules of each run.
RUN_EACH_PROGRAM = """
import contextlib, importlib, io, json, sys
from fpp_sweep.cli import run
main = importlib.import_module(sys.argv[1]).main
results = []
for words in json.load(sys.stdin):
    shown, message, status = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(message):
        try:
            run(lambda: main(words))
        except SystemExit as ended:
            status = ended.code
    heavy = [name for name in ("ray", "torch", "open_clip") if name in sys.modules]
    results.append([status, shown.getvalue(), message.getvalue(), heavy])
print(json.dumps(results))
"""


@pytest.mark.parametrize("command", ["tune", "evaluate", "reproduce"])
def test_unknown_names_are_refused_before_ray_or_torch_is_loaded(tmp_path, command):
    """The commands name a model whose weights would be downloaded if the check came later."""
    more = ["--model", "ViT-B-16/openai", "--out", str(tmp_path / "out")]
    cases = [(words, complaint) for name, words, complaint in WRONG_NAMES if name == command]
    lines = [[*NEEDED.get(command, []), *words, *more] for words, _ in cases]
    module = "fpp_sweep.reproduce.__main__" if command == "reproduce" else f"fpp_sweep.{command}"
    done = subprocess.run(
        [sys.executable, "-c", RUN_EACH_PROGRAM, module],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    for (words, complaint), (status, shown, message, heavy) in zip(cases, json.loads(done.stdout), strict=True):
        assert status == 2, (words, message)
        assert complaint in message.splitlines()[-1], (words, message)
        assert shown == ""
        assert heavy == [], words
        assert "Traceback" not in message
