"""The folders from which child processes import."""

import subprocess
import sys

import pytest

from fpp_sweep.sweep.reporter import PACKAGE
from tests.kit.processes import ROOT, environment

# the parent, whose `sys.path` begins with the current folder, and its child
PARENT = """
import os, subprocess, sys
from fpp_sweep.sweep.reporter import child_environment
os.chdir({folder!r})
subprocess.run([sys.executable, "-c", "import fpp_sweep; print(fpp_sweep.__file__)"], env=child_environment())
"""


@pytest.mark.parametrize("later_folder", [".", ".."])
def test_a_child_imports_the_package_that_its_parent_has_imported_from_the_current_folder(tmp_path, later_folder):
    """The folders of `sys.path` after the current one have another package."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "fpp_sweep").symlink_to(PACKAGE)
    code = PARENT.format(folder=later_folder)
    variables = environment(tmp_path) | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout, env=variables, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{checkout / 'fpp_sweep' / '__init__.py'}\n", "")


def test_a_child_imports_nothing_else_from_the_current_folder(tmp_path):
    (tmp_path / "fpp_sweep.py").write_text("raise SystemExit('a module of the current folder')")
    code = PARENT.format(folder=str(tmp_path))
    variables = environment(tmp_path) | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=variables, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{PACKAGE / '__init__.py'}\n", "")
