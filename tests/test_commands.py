"""Properties of all commands: names, help texts, versions, exit statuses, and printed commands that run."""

import os
import signal
import subprocess
import sys
import tomllib
from importlib import import_module

import pytest

from fpp_sweep import __main__ as console
from fpp_sweep.cli import FLAGS, RUN_FLAGS
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.version import VERSION
from tests.kit.processes import ROOT, environment

RUN_COMMANDS = ("tune", "evaluate", "reproduce")  # commands that run trials


MODULES = {name: console.module_of(name) for name in console.COMMANDS}  # by command


def module_of(command):
    return import_module(MODULES[command])


def printed(capsys, main, words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code
    return capsys.readouterr().out


def test_there_are_eleven_commands_and_each_has_a_module_with_its_name():
    assert list(console.COMMANDS) == [
        "init",
        "tune",
        "evaluate",
        "reproduce",
        "show",
        "import",
        "compare",
        "steer",
        "sync",
        "doctor",
        "cache",
    ]
    at_the_top = {path.stem for path in (ROOT / "fpp_sweep").glob("[a-z]*.py")} | {"reproduce"}
    assert at_the_top == {*console.COMMANDS, "cli", "testing"}  # what commands share; checks of plugins


@pytest.mark.parametrize("command", console.COMMANDS)
def test_both_forms_of_a_command_print_the_same_help_with_the_typed_name(capsys, monkeypatch, command):
    main = module_of(command).main
    help_text = printed(capsys, main, ["--help"])
    assert help_text.startswith(f"usage: python -m fpp_sweep.{command} ")
    first_words = module_of(command).__doc__.split()[:4]
    assert " ".join(first_words) in " ".join(help_text.split())  # the module's text is that of the help
    assert printed(capsys, console.main, [command, "--help"]) == help_text
    monkeypatch.setattr("sys.argv", ["/env/bin/fpp-sweep", command])
    help_of_script = printed(capsys, console.main, [command, "--help"])
    assert help_of_script.startswith(f"usage: fpp-sweep {command} ")
    assert "python -m" not in help_of_script


@pytest.mark.parametrize("command", console.COMMANDS)
def test_every_command_prints_the_version(capsys, command):
    console.main(["--version"])
    assert capsys.readouterr().out == f"fpp_sweep {VERSION}\n"
    assert printed(capsys, console.main, [command, "--version"]) == f"fpp_sweep {VERSION}\n"


@pytest.mark.parametrize("command", RUN_COMMANDS)
def test_commands_that_run_trials_share_one_block_of_flags(capsys, command):
    text = printed(capsys, module_of(command).main, ["--help"])
    for name in RUN_FLAGS:
        flag = FLAGS[name]
        assert f"\n  {name}" in text
        start = flag.help.partition(";")[0].split(", ")[0]
        assert start in " ".join(text.split())
    for heading in ("model and data", "settings", "machines", "results"):
        assert f"\n{heading}:\n" in text


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_without_a_command_all_commands_are_listed(capsys, words):
    console.main(words)
    listed = capsys.readouterr().out
    assert all(f"\n    {name} " in listed for name in console.COMMANDS)


def test_an_unknown_command_is_refused_with_the_nearest_one():
    with pytest.raises(InputError, match=r"unknown command 'tunes', did you mean 'tune'\?"):
        console.main(["tunes"])


def test_the_console_script_calls_the_same_function():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"fpp-sweep": f"{console.__name__}:{console.command.__name__}"}


# --- commands in a shell ------------------------------------------------------------------------------


def test_a_printed_command_runs_in_the_users_shell(tmp_path):
    """The printed command names the script if the PATH has it, and the interpreter otherwise."""
    code = (
        "from fpp_sweep.spec.messages import command_line, runnable; "
        "print(runnable(command_line('cache', ['list']))); print(runnable('mlflow --version'))"
    )
    scripts = os.path.dirname(sys.executable)
    for path in ("/usr/bin:/bin", f"{scripts}:/usr/bin:/bin"):
        env = environment(tmp_path) | {"PATH": path}
        (tmp_path / "cache").mkdir(exist_ok=True)
        printed = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        for script, line in zip(("fpp-sweep", "mlflow"), printed.stdout.splitlines(), strict=True):
            assert line.startswith(f"{script} " if scripts in path else sys.executable)
        done = subprocess.run(printed.stdout.splitlines()[0], shell=True, env=env, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert "0 entries" in done.stdout


INTERRUPTED_PROGRAM = """
import signal, sys
from fpp_sweep import __main__

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["fpp-sweep", "tune", "--space", "nowhere.yaml"]
__main__.command()
"""


@pytest.mark.parametrize(
    ("module", "code", "message"), [("fpp_sweep.cli", -signal.SIGINT, ""), ("fpp_sweep.tune", 130, "interrupted\n")]
)
def test_an_interrupt_while_modules_load_leaves_no_traceback(tmp_path, module, code, message):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_PROGRAM.format(module=module)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stderr) == (code, message)


def test_commands_and_tests_set_how_threads_wait(tmp_path):
    """Threads that wait actively made the README's test command ten times slower on a busy machine."""
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"  # the root's conftest.py sets it
    code = "import os, sys; from fpp_sweep.cli import run; run(lambda: print(os.environ.get('OMP_WAIT_POLICY')))"
    env = {name: value for name, value in environment(tmp_path).items() if not name.startswith("OMP_")}
    for users_value, expected in ((None, "PASSIVE"), ("ACTIVE", "ACTIVE")):
        variables = {} if users_value is None else {"OMP_WAIT_POLICY": users_value}
        done = subprocess.run([sys.executable, "-c", code], env=env | variables, capture_output=True, text=True)
        assert done.stdout == f"{expected}\n"
