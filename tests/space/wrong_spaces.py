"""Wrong search spaces, each with the line that refuses it, from wrong_spaces.yaml."""

from pathlib import Path

import yaml

RANGE = "params: {fpp.gamma1: {low: 0.1, high: 10, log: true}}\n"
TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def cases(section):
    """Return pairs of a space's text and the line that refuses it, from one section of the table."""
    return [(case["space"].replace("RANGE\n", RANGE), case["line"]) for case in TABLE[section]]


SHAPES = cases("shapes")
VALUES = cases("values")
