"""One command for all: `fpp-sweep COMMAND`, as `python -m fpp_sweep COMMAND`, with what each command says itself."""

import signal
import subprocess
import sys
import tomllib
from importlib import import_module

import pytest

from fpp_sweep import __main__ as one
from fpp_sweep.spec.errors import InputError
from tests.drivers import ROOT, environment


def printed(capsys, main, words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in one.COMMANDS if name != "list"])
def test_each_command_has_the_same_help_behind_the_one_name(capsys, name):
    module = f"fpp_sweep.{name}" + (".__main__" if name in ("reproduce", "report") else "")
    own = printed(capsys, import_module(module).main, ["--help"])
    assert own.startswith(f"usage: python -m fpp_sweep.{name} ")
    assert printed(capsys, one.main, [name, "--help"]) == own


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_without_a_command_all_are_listed(capsys, words):
    one.main(words)
    listed = capsys.readouterr().out
    assert all(f"\n    {name} " in listed for name in one.COMMANDS)


def test_a_command_that_does_not_exist_is_told_with_the_nearest():
    with pytest.raises(InputError, match=r"unknown command 'tunes', did you mean 'tune'\?"):
        one.main(["tunes"])


def test_the_console_script_is_the_same_function():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"fpp-sweep": f"{one.__name__}:{one.command.__name__}"}


INTERRUPTED = """
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
    ("module", "code", "said"),
    [("fpp_sweep.cli.command", -signal.SIGINT, ""), ("fpp_sweep.tune", 130, "interrupted\n")],
)
def test_an_interrupt_while_modules_load_leaves_no_traceback(tmp_path, module, code, said):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(module=module)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stderr) == (code, said)
