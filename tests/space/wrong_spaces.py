"""Search spaces that are wrong, with the line that refuses each: see wrong_spaces.yaml."""

from pathlib import Path

import yaml

RANGE = "params: {fpp.gamma1: {low: 0.1, high: 10, log: true}}\n"
TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def cases(section):
    """Return the pairs of a space's text and its line in a section of the table."""
    return [(case["space"].replace("RANGE\n", RANGE), case["line"]) for case in TABLE[section]]


SHAPES = cases("shapes")
VALUES = cases("values")
