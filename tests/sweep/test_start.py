"""The start of a sweep: its record, and a page that is shown until the first report."""

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.sweep import sweep_info as sweep_info_module
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.start import Start, begin
from tests.kit.records import sweep_info
from tests.kit.spaces import small_space


@pytest.fixture
def start():
    return Start(space=small_space(), info=sweep_info(name="sweep", state="running"), tracking_uri="", info_before=None)


def test_the_page_that_is_announced_exists_from_the_start(tmp_path, start):
    folder = SweepFolder(tmp_path)
    begin(folder, start)
    assert folder.info().state == "running"
    page = (folder.report / "sweep.html").read_text()
    assert "No report is written yet" in page
    assert 'data-reload-seconds="10"' in page


def test_a_resume_keeps_the_page_of_the_sweep(tmp_path, start):
    folder = SweepFolder(tmp_path)
    folder.report.mkdir(parents=True)
    (folder.report / "sweep.html").write_text("report")
    begin(folder, start)
    assert (folder.report / "sweep.html").read_text() == "report"


def test_a_new_sweep_records_the_commit_of_the_code(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_info_module, "git_state", lambda: ("9defbb8", True))
    info = sweep_info_module.new_info(small_space(), Options(command="tune"), SweepFolder(tmp_path / "new"), "")
    assert (info.name, info.state, info.command) == ("new", "running", "tune")
    assert (info.git_commit, info.git_dirty) == ("9defbb8", True)
