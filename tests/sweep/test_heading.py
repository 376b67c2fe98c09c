"""The header of a sweep: its budget, and the work after the budget."""

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.sweep.heading import heading
from tests.kit.records import sweep_info


@pytest.mark.parametrize(
    ("search", "line"),
    [
        ({"trials": 8}, "then      up to 6 finalists with 3 seeds each, the best of them on test"),
        (
            {"wall_clock": 60},
            "then      up to 6 finalists with 3 seeds each, the best of them on test; beyond the budget of time",
        ),
        ({"gpu_hours": 2, "finalists": {"seeds": 1}}, "then      the front on test, with one seed"),
    ],
)
def test_the_header_names_the_work_after_the_budget(tmp_path, search, line):
    space = {"search": {"finalists": {"count": 6, "seeds": 3}, **search}}
    assert line in heading(SweepFolder(tmp_path), space, sweep_info().objectives, "val", width=120)


@pytest.mark.parametrize(
    ("work", "line"),
    [
        ({"datasets": ["dtd", "pets"]}, "work      tiny on dtd, pets"),
        ({"dataset_file": "mine.yaml"}, "work      tiny on mine.yaml"),
    ],
)
def test_the_header_names_the_model_and_the_datasets_or_their_file(tmp_path, work, line):
    space = {"work": {"model": "tiny", **work}}
    assert line in heading(SweepFolder(tmp_path), space, sweep_info().objectives, "val", width=120)
