"""Map `search_spaces` into the package, which pyproject.toml cannot do beside `packages.find`; all else is there."""

from setuptools import find_packages, setup

SPACES = "fpp_sweep.search_spaces"

setup(packages=[*find_packages(include=["fpp_sweep*"]), SPACES], package_dir={SPACES: "search_spaces"})
