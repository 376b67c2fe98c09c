"""The space that the tests of this folder run on."""

from fpp_sweep.space.reading import parse_space

SPACE = "params: {fpp.gamma1: {low: 0.1, high: 10}}\nwork: {datasets: [scenes, digits], limit: 5}"


def space(*overrides):
    return parse_space(SPACE, "space.yaml", overrides)
