"""Stylesheet and scripts of the pages."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

from fpp_sweep.report.html import ASSETS
from fpp_sweep.spec.palette import INK, LINE, PAPER

ROOT = Path(__file__).parents[2]


def test_every_file_of_the_package_that_is_not_python_is_package_data():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["fpp_sweep"]
    package = ROOT / "fpp_sweep"
    names = [str(file.relative_to(package)) for file in package.rglob("*.*") if file.is_file()]
    data = [name for name in names if not name.endswith((".py", ".pyc"))]
    assert "report/assets/page.css" in data
    assert not [name for name in data if not any(fnmatch(name, pattern) for pattern in patterns)]


def test_figures_have_the_colors_that_the_stylesheet_replaces():
    light = (ASSETS / "page.css").read_text().partition("}")[0]
    for name, color in (("ink", INK), ("line", LINE), ("paper", PAPER)):
        assert f"--{name}: {color};" in light


def test_scripts_and_stylesheet_cannot_end_the_element_that_holds_them():
    for file in (*ASSETS.glob("*.js"), *ASSETS.glob("*.css")):
        assert "</" not in file.read_text(), file.name
