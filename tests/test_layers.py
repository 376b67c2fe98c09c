"""Who may import whom, and what importing may cost."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fpp_sweep"
CLUSTER = {"ray", "mlflow", "optuna"}
COMMANDS = ("tune", "evaluate", "datasets", "cache", "sync", "tiny.train")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module}
    return found


def modules(*folders: str) -> list[Path]:
    paths = sorted(path for folder in folders for path in (PACKAGE / folder).rglob("*.py"))
    assert paths
    return paths


@pytest.mark.parametrize("path", modules("core", "tiny"), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_knows_no_cluster_searcher_or_tracker(path):
    assert not {name.split(".")[0] for name in imports(path)} & CLUSTER


@pytest.mark.parametrize("path", modules("core", "tiny"), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_does_not_import_the_commands(path):
    commands = {f"fpp_sweep.{name}" for name in ("evaluate", "datasets", "cache", "cli")}
    assert not imports(path) & commands


@pytest.mark.parametrize(("folder", "other"), [("dist", "tracking"), ("tracking", "dist"), ("report", "dist")])
def test_search_tracking_and_report_do_not_know_each_other(folder, other):
    for path in modules(folder):
        assert not {name for name in imports(path) if name.startswith(f"fpp_sweep.{other}")}, path


@pytest.mark.parametrize("folder", ["dist", "tracking", "report"])
def test_only_dist_knows_ray_and_only_tracking_knows_mlflow(folder):
    allowed = {"dist": {"ray", "optuna"}, "tracking": {"mlflow"}, "report": {"optuna"}}[folder]
    for path in modules(folder):
        assert {name.split(".")[0] for name in imports(path)} & CLUSTER <= allowed, path


def test_a_trials_process_loads_no_torch():
    code = "import sys, fpp_sweep.search.conductor, fpp_sweep.core.metrics; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_config_and_errors_need_the_standard_library_only():
    for name in ("config.py", "errors.py", "cli.py"):
        outside = {module.split(".")[0] for module in imports(PACKAGE / name)} - sys.stdlib_module_names
        assert outside <= {"fpp_sweep"}, name


def test_the_core_loads_without_the_heavy_libraries():
    listed = ", ".join(sorted(CLUSTER | {"open_clip", "timm", "matplotlib", "sklearn"}))
    code = (
        "import sys, fpp_sweep.trial.bench, fpp_sweep.report.evaluation, fpp_sweep.core.models.loading\n"
        f"print(sorted(set('{listed}'.split(', ')) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_answers_fast_because_it_loads_nothing_heavy(command):
    code = (
        f"import sys, runpy; sys.argv = ['x', '--help']\n"
        f"try: runpy.run_module('fpp_sweep.{command}', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'open_clip', 'numpy', 'sklearn', 'matplotlib', 'ray', 'mlflow', 'optuna', 'plotly'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
    assert time.perf_counter() - began < 20  # a machine may be slow; what costs seconds is asserted above
