"""The demonstration of docs/: made by today's templates, and by the command that runs here on a small sweep."""

import shutil
import subprocess
import sys

import pytest

from fpp_sweep.report.html import assets_digest
from tests.kit.processes import ROOT, environment

PAGES = ("sweep.html", "reproduction.html")


@pytest.mark.parametrize("name", PAGES)
def test_a_demonstration_is_made_by_todays_templates(name):
    page = (ROOT / "docs/demo" / name).read_text()
    assert f'<meta name="assets" content="{assets_digest()}">' in page, "make it anew: python -m tools.demo"


@pytest.mark.nightly
@pytest.mark.slow  # runs a sweep and a reproduction
def test_the_command_makes_pages_and_blocks_of_a_small_run(tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/first_sweep.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    command = [sys.executable, "-m", "tools.demo", "--trials", "2", "--into", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=environment(tmp_path), check=True)
    for name in PAGES:
        assert assets_digest() in (tmp_path / "docs/demo" / name).read_text()
    assert "This run of " in (tmp_path / "README.md").read_text()
