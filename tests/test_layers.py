"""Who may import whom, how large a room may grow, and what importing may cost."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# rooms by floor, the lowest first: a module imports from floors below its own, and from its own room
FLOORS = (
    ("errors", "version", "files"),
    ("catalogue", "cli", "facts", "progress"),
    ("config", "plugins"),
    ("tasks",),
    ("keys",),
    ("tiny",),
    ("core.text", "core.metrics", "core.optim", "core.seeds"),
    ("core.models", "core.sums"),
    ("core.evidence",),
    ("core.datasets",),
    ("core.images", "core.methods", "core.prompt", "core.fpp"),
    ("space",),
    ("records",),
    ("trial",),
    ("workers",),
    ("search", "report", "tracking"),
    ("sweep",),
    ("reproduce",),
    ("tune", "evaluate", "datasets", "cache", "sync", "doctor", "show", "steer", "compare", "report.__main__", ""),
    ("__main__",),
)
FLOOR = {f"fpp_sweep.{room}".rstrip("."): floor for floor, rooms in enumerate(FLOORS) for room in rooms}
OUTSIDE = {  # who may load what is heavy, or belongs to a cluster
    "ray": {"workers", "search", "sweep"},
    "optuna": {"search", "report"},
    "mlflow": {"tracking"},
    "torch": {"core", "tiny", "trial", "sweep", "reproduce"},
    "open_clip": {"core", "tiny"},
}
COMMANDS = (
    "tune",
    "evaluate",
    "datasets",
    "cache",
    "sync",
    "doctor",
    "reproduce",
    "report",
    "show",
    "steer",
    "compare",
    "tiny.making.train",
)
HEAVY = ["torch", "open_clip", "numpy", "sklearn", "matplotlib", "ray", "mlflow", "optuna", "plotly", "rich"]


def modules(folder):
    """Files by dotted name; a package's own file has the package's name."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


PACKAGE = modules("fpp_sweep")
BENCHMARKS = modules("benchmarks")


def imports(path, known):
    """Everything that a file imports, wherever it does; names of modules rather than what is in them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from {name if name in known else node.module for name in names}


EDGES = {
    (name, imported)
    for folder in (PACKAGE, BENCHMARKS)
    for name, path in folder.items()
    for imported in imports(path, folder)
    if imported in folder and imported != name
}


def room(name):
    """The longest listed room that a module is in; the package itself is the top."""
    parts = name.split(".")
    known = (".".join(parts[:size]) for size in range(len(parts), 1, -1))
    return next((candidate for candidate in known if candidate in FLOOR), "fpp_sweep")


def test_every_module_is_in_a_room_on_a_floor():
    strays = [name for name in PACKAGE if room(name) == "fpp_sweep" and name not in ("fpp_sweep", "fpp_sweep.core")]
    assert not strays


def test_nothing_is_imported_from_a_floor_above_or_from_next_door():
    wrong = [
        f"{one} imports {other}"
        for one, other in sorted(EDGES)
        if one.startswith("fpp_sweep") and room(one) != room(other) and FLOOR[room(one)] <= FLOOR[room(other)]
    ]
    assert not wrong, "\n".join(wrong)


def test_no_two_modules_import_each_other_on_any_way():
    after = {name: {other for one, other in EDGES if one == name} for name in (*PACKAGE, *BENCHMARKS)}

    def reach(name):
        seen, ahead = set(), [name]
        while ahead:
            new = after[ahead.pop()] - seen
            seen |= new
            ahead += new
        return seen

    reached = {name: reach(name) for name in after}
    circles = [f"{one} <-> {other}" for one in after for other in reached[one] if one < other and one in reached[other]]
    assert not circles, "\n".join(circles)


@pytest.mark.parametrize("library", OUTSIDE)
def test_a_library_is_known_to_its_rooms_only(library):
    knowing = {
        name.split(".")[1] for name, path in PACKAGE.items() if library in {i.split(".")[0] for i in imports(path, ())}
    }
    assert knowing <= OUTSIDE[library]


def test_no_folder_has_the_name_of_build_output():
    assert not {path.name for path in (ROOT / "fpp_sweep").rglob("*") if path.is_dir()} & {
        "dist",
        "build",
        "target",
        "out",
    }


def test_config_and_errors_need_the_standard_library_only():
    for name in ("config", "errors", "cli", "catalogue", "facts", "tasks", "keys", "plugins"):
        outside = {
            module.split(".")[0] for module in imports(PACKAGE[f"fpp_sweep.{name}"], ())
        } - sys.stdlib_module_names
        assert outside <= {"fpp_sweep"}, name


HEADER = """
import io, sys
from contextlib import redirect_stderr, suppress
from tempfile import TemporaryDirectory
from fpp_sweep import tune

class Ends:
    def find_spec(self, name, *_):
        if name == "fpp_sweep.sweep.run":  # which loads what a sweep needs
            raise SystemExit

sys.meta_path.insert(0, Ends())
with TemporaryDirectory() as folder, redirect_stderr(io.StringIO()) as err, suppress(SystemExit):
    tune.main(["--space", "search_spaces/smoke.yaml", "--out", folder])
subjects = [line.split()[0] for line in err.getvalue().splitlines()]
assert subjects == ["sweep", "question", "searches", "work", "budget", "folder", "page"], subjects
"""
ONE = "from fpp_sweep.__main__ import main\ntry: main(['tune', '--help'])\nexcept SystemExit: pass"


@pytest.fixture(scope="module")
def loaded():
    """What is loaded after some imports, and what each command's help prints; a process for each, all at once."""
    imported = {
        "a trial's process": "import fpp_sweep.trial.trial, fpp_sweep.trial.artifacts, fpp_sweep.records.folder",
        "the keeper": "import fpp_sweep.workers.keeper",
        "the core": "import fpp_sweep.trial.worker, fpp_sweep.report.evaluation",
        "the header": HEADER,
        "one command": ONE,
    }
    asked = {name: f"{code}\nimport sys" for name, code in imported.items()}
    for command in COMMANDS:
        asked[command] = (
            f"import sys, runpy; sys.argv = ['x', '--help']\n"
            f"try: runpy.run_module('fpp_sweep.{command}', run_name='__main__')\n"
            "except SystemExit as end: assert not end.code, end.code"
        )
    show = f"\nimport json; print(json.dumps(sorted(set({HEAVY}) & set(sys.modules))))"
    started = {
        name: subprocess.Popen([sys.executable, "-c", code + show], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for name, code in asked.items()
    }
    printed = {name: process.communicate()[0] for name, process in started.items()}
    assert not {name: process.returncode for name, process in started.items() if process.returncode}
    return {name: (text, set(json.loads(text.splitlines()[-1]))) for name, text in printed.items()}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_loads_nothing_heavy(loaded, command):
    text, heavy = loaded[command]
    assert "usage:" in text
    assert not heavy


def test_processes_load_what_they_need_and_no_more(loaded):
    assert loaded["a trial's process"][1] == {"numpy"}
    assert loaded["the keeper"][1] == {"numpy"}
    assert loaded["the core"][1] == {"numpy", "torch"}
    assert loaded["one command"][1] == set()


def test_a_sweep_is_announced_before_anything_heavy_is_loaded(loaded):
    assert loaded["the header"][1] == {"rich"}  # which draws it
