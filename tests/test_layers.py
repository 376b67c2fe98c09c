"""Layers, imports and density of the code, and what importing it may load."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fpp_sweep.__main__ import COMMANDS
from tests.kit.source import (
    Module,
    crowded_expressions,
    densities,
    imports_in_functions,
    long_functions,
    own_imports,
    read_modules,
)

ROOT = Path(__file__).parent.parent
# packages by layer, the lowest first: a module imports from layers below its own, and from its own package
LAYERS = (
    ("spec",),
    ("tiny", "space", "core.compute", "core.metrics", "core.optim"),
    ("core.text",),
    ("core.models",),
    ("core.datasets",),
    ("core.images", "core.methods", "core.prompt", "core.fpp"),
    ("statistics",),
    ("records",),
    ("trial",),
    ("workers",),
    ("search", "report", "cli"),
    ("tracking", "checks"),
    ("sweep", "testing"),
    ("reproduce",),
    ("init", "tune", "evaluate", "show", "import", "compare", "steer", "sync", "doctor", "cache", ""),
    ("__main__",),
)
LAYER = {f"fpp_sweep.{package}".rstrip("."): layer for layer, packages in enumerate(LAYERS) for package in packages}
LIBRARIES = {  # packages that may import what is slow to load, or belongs to a cluster
    "ray": {"workers", "search", "sweep"},
    "optuna": {"search", "report"},
    "mlflow": {"tracking"},
    "torch": {"core", "tiny", "trial", "sweep", "reproduce", "testing"},
    "open_clip": {"core", "tiny"},
}
HEAVY = [
    "torch",
    "open_clip",
    "numpy",
    "sklearn",
    "matplotlib",
    "ray",
    "mlflow",
    "optuna",
    "plotly",
    "rich",
    "filelock",
    "psutil",
]

# gates of density, per 100 lines of functions; generators of `any` and `all` do not count
MOST_CLAUSES = 5.0
MOST_CONDITIONALS = 1.5
MOST_CLAUSES_OF_EXPRESSION = 2
MOST_LINES_OF_FUNCTION = 40
MOST_OWN_IMPORTS = 18
# 14 keep `--help` of the commands fast, 4 wait until Ray's environment is set, and most others avoid torch, open_clip,
# Optuna or MLflow in processes that do without. Fewer would mean slower commands or wrappers, such as imports by name.
MOST_IMPORTS_IN_FUNCTIONS = 45


# parsed once, and by the process that runs these tests, not by each that collects them
@pytest.fixture(scope="module")
def modules():
    """The modules of the package by name."""
    return {module.name: module for module in read_modules("fpp_sweep")}


@pytest.fixture(scope="module")
def edges(modules):
    """Pairs of a module and one that it imports, of the package and of the benchmarks."""
    benchmarks = {module.name: module for module in read_modules("benchmarks")}
    pairs = set()
    for known in (modules, benchmarks):
        for name, module in known.items():
            pairs |= {(name, imported) for imported in own_imports(module, set(known))}
    return pairs


def package_of(name):
    """The longest listed package that a module is in; `fpp_sweep` if none is listed."""
    parts = name.split(".")
    for size in range(len(parts), 1, -1):
        candidate = ".".join(parts[:size])
        if candidate in LAYER:
            return candidate
    return "fpp_sweep"


def libraries_of(module):
    """Top-level names that a module imports anywhere, for type checking too."""
    names = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_every_module_is_in_a_package_of_a_layer(modules):
    at_the_top = {"fpp_sweep", "fpp_sweep.core"}
    strays = [name for name in modules if package_of(name) == "fpp_sweep" and name not in at_the_top]
    assert not strays


def test_no_module_imports_from_a_higher_layer_or_from_another_package_of_its_layer(edges):
    wrong = []
    for importer, imported in sorted(edges):
        if not importer.startswith("fpp_sweep") or package_of(importer) == package_of(imported):
            continue
        if LAYER[package_of(importer)] <= LAYER[package_of(imported)]:
            wrong.append(f"{importer} imports {imported}")
    assert not wrong, "\n".join(wrong)


def reachable(start, imports):
    """Modules that importing one leads to."""
    seen = set()
    ahead = [start]
    while ahead:
        new = imports[ahead.pop()] - seen
        seen |= new
        ahead += new
    return seen


def test_no_two_modules_import_each_other(edges):
    imports = {name: set() for edge in edges for name in edge}
    for importer, imported in edges:
        imports[importer].add(imported)
    cycles = [name for name in imports if name in reachable(name, imports)]
    assert not cycles, "\n".join(cycles)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_slow_library_is_imported_by_its_packages_only(library, modules):
    importers = {name.split(".")[1] for name, module in modules.items() if library in libraries_of(module)}
    assert importers <= LIBRARIES[library]


def test_code_is_written_out(modules):
    """All gates, with their figures: `python -m pytest -n0 -rP tests/test_layers.py -k written_out`."""
    package = list(modules.values())
    figures = densities(package)
    own = {name: len(own_imports(module, set(modules))) for name, module in modules.items()}
    inside = imports_in_functions(package)
    for name, (clauses, conditionals) in figures.items():
        print(f"{name}: {clauses:.1f} clauses, {conditionals:.1f} conditional expressions in 100 lines of functions")
    print("most own imports:", max(own.items(), key=lambda item: item[1]), "; imports in functions:", len(inside))
    too_dense = {
        name: density
        for name, density in figures.items()
        if density[0] > MOST_CLAUSES or density[1] > MOST_CONDITIONALS
    }
    assert not too_dense
    assert not crowded_expressions(package, MOST_CLAUSES_OF_EXPRESSION)
    assert not long_functions(package, MOST_LINES_OF_FUNCTION)
    assert not {name: count for name, count in own.items() if count > MOST_OWN_IMPORTS}
    assert len(inside) <= MOST_IMPORTS_IN_FUNCTIONS
    assert not [location for location, has_reason in inside.items() if not has_reason]


def test_the_measure_of_density_counts_what_it_says(tmp_path):
    source = """
def outer(rows):
    pairs = [(a, b) for a in rows for b in (c for c in rows if c)]
    def inner(row):
        return 1 if row else 2
    return any(row > 1 for row in rows)
"""
    module = Module("fpp_sweep.sample", ROOT / "fpp_sweep/sample.py", ast.parse(source))
    assert densities([module]) == {"small": (60.0, 20.0)}
    assert crowded_expressions([module], 2) == ["fpp_sweep/sample.py:3"]
    assert long_functions([module], 4) == ["fpp_sweep/sample.py:2 outer: 5 lines"]


def test_no_folder_has_the_name_of_build_output():
    assert not {path.name for path in (ROOT / "fpp_sweep").rglob("*") if path.is_dir()} & {
        "dist",
        "build",
        "target",
        "out",
    }


def test_spec_needs_the_standard_library_and_small_packages_only(modules):
    allowed = {"filelock", "fpp_sweep", "psutil", "pydantic", "pydantic_core", "rich"} | set(sys.stdlib_module_names)
    others = {name: libraries_of(module) - allowed for name, module in modules.items() if module.package == "spec"}
    assert len(others) > 10
    assert not {name: libraries for name, libraries in others.items() if libraries}


HEADER = """
import io, sys
from contextlib import redirect_stderr, suppress
from tempfile import TemporaryDirectory
from fpp_sweep import tune

class Ends:
    def find_spec(self, name, *_):
        if name == "fpp_sweep.sweep.start":  # which loads what a sweep needs
            raise SystemExit

sys.meta_path.insert(0, Ends())
with TemporaryDirectory() as folder, redirect_stderr(io.StringIO()) as err, suppress(SystemExit):
    tune.main(["--space", "search_spaces/smoke.yaml", "--out", folder])
subjects = [line.split()[0] for line in err.getvalue().splitlines()]
assert subjects == ["sweep", "question", "searches", "work", "budget", "then", "folder", "page"], subjects
"""
ONE = "from fpp_sweep.__main__ import main\ntry: main(['tune', '--help'])\nexcept SystemExit: pass"
HELP = f"""
import runpy, sys
sys.argv = ["x", "--help"]
for command in {list(COMMANDS)}:
    try:
        runpy.run_module(f"fpp_sweep.{{command}}", run_name="__main__")
    except SystemExit as end:
        assert not end.code, (command, end.code)
"""


@pytest.fixture(scope="module")
def loaded():
    """Run some imports and all commands' help in concurrent processes; return their output and loaded packages."""
    imported = {
        "a trial's process": "import fpp_sweep.trial.trial, fpp_sweep.trial.artifacts, fpp_sweep.records.folder",
        "the scheduler": "import fpp_sweep.workers.scheduler",
        "the core": "import fpp_sweep.trial.worker",
        "an evaluation in one process": "import fpp_sweep.sweep.local_run",
        "the header": HEADER,
        "one command": ONE,
        "help": HELP,
    }
    show = f"\nimport json, sys; print(json.dumps(sorted(set({HEAVY}) & set(sys.modules))))"
    started = {
        name: subprocess.Popen([sys.executable, "-c", code + show], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for name, code in imported.items()
    }
    printed = {name: process.communicate()[0] for name, process in started.items()}
    assert not {name: process.returncode for name, process in started.items() if process.returncode}
    return {name: (text, set(json.loads(text.splitlines()[-1]))) for name, text in printed.items()}


def test_help_of_every_command_loads_nothing_heavy(loaded):
    text, heavy = loaded["help"]
    assert text.count("usage:") == len(COMMANDS)
    assert not heavy


def test_processes_load_what_they_need_and_no_more(loaded):
    assert loaded["a trial's process"][1] == {"numpy"}
    assert loaded["the scheduler"][1] == {"numpy"}
    assert loaded["the core"][1] == {"numpy", "torch"}
    # until all names are checked; rich has drawn the heading before
    assert loaded["an evaluation in one process"][1] == {"numpy", "rich"}
    assert loaded["one command"][1] == set()


def test_a_sweep_is_announced_before_anything_heavy_is_loaded(loaded):
    # they check the space and its datasets, and draw the heading
    assert loaded["the header"][1] == {"numpy", "rich"}
