"""A plugin of pytest that tells the recorder which test runs, and writes outcome and seconds of each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import sitecustomize

OUTCOMES = Path(os.environ["MUTATE_HITS"], "outcomes.jsonl")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid: str) -> None:
    sitecustomize.begin_test(nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    with OUTCOMES.open("a") as file:
        file.write(json.dumps([report.nodeid, report.when, report.outcome, report.duration]) + "\n")
