"""The header of a sweep: its budget, and the work after the budget."""

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.sweep.live import heading
from tests.kit.records import sweep_info


@pytest.mark.parametrize(
    ("search", "line"),
    [
        ({"trials": 8}, "then      up to 6 finalists with 3 seeds each, the best of them on test"),
        (
            {"wall_clock": 60},
            "then      up to 6 finalists with 3 seeds each, the best of them on test; beyond the budget of time",
        ),
        (
            {"trials": 8, "finalists": {"count": 1, "seeds": 3}},
            "then      up to 1 finalist with 3 seeds each, the best of them on test",
        ),
        ({"gpu_hours": 2, "finalists": {"seeds": 1}}, "then      the front on test"),
    ],
)
def test_the_header_names_the_work_after_the_budget(tmp_path, search, line):
    space = {"search": {"finalists": {"count": 6, "seeds": 3}, **search}}
    assert line in heading(SweepFolder(tmp_path), space, sweep_info().objectives, "val", width=120)


@pytest.mark.parametrize(("seeds", "then"), [(3, ["then      up to 6 finalists with 3 seeds each"]), (1, [])])
def test_the_header_of_a_search_on_test_promises_no_run_on_test(tmp_path, seeds, then):
    space = {"search": {"trials": 8, "finalists": {"count": 6, "seeds": seeds}}}
    lines = heading(SweepFolder(tmp_path), space, sweep_info().objectives, "test", width=120)
    assert [line for line in lines if line.startswith("then")] == then


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
