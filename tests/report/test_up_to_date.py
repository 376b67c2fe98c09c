"""A report is written again exactly if something has changed: the sweep, the report, a plugin or the folder's path."""

import shutil
from dataclasses import replace

import pytest

from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report import writing
from fpp_sweep.report.page_command import write_sweep_page
from fpp_sweep.report.up_to_date import FINGERPRINT_FILE, is_up_to_date
from fpp_sweep.report.writing import write_report
from fpp_sweep.spec import plugins
from tests.kit.records import build_sweep

PLUGIN = """
from fpp_sweep import metric

@metric(goal="max", heading="n", decimals=0)
def count(predictions):
    return float(len(predictions.labels))
"""


@pytest.fixture
def folder(tmp_path):
    """Build an ended sweep with a report that is up to date."""
    folder = build_sweep(tmp_path / "perturb-1", trials=3)
    (folder.artifacts("trial-0001") / "test").mkdir(parents=True, exist_ok=True)
    write_report(folder, pages=True)
    assert is_up_to_date(folder)
    return folder


def test_an_unchanged_report_is_not_written_again(folder):
    page = folder.report / "sweep.html"
    before = page.stat()
    assert write_sweep_page(folder.path) == page
    assert page.stat().st_ino == before.st_ino


def change_a_record(folder):
    record = folder.trials()[0]
    folder.write_trial(replace(record, reason="changed"))


def add_a_log(folder):
    (folder.artifacts("trial-0001") / "log.txt").write_text("a line\n")


def add_block_statistics(folder):
    (folder.artifacts("trial-0001") / "test" / "block_stats.npz").write_bytes(b"")


def edit_the_page(folder):
    (folder.report / "sweep.html").write_text("edited")


def delete_a_config(folder):
    (folder.report / "best" / "knee.yaml").unlink()


def damage_the_fingerprint(folder):
    (folder.report / FINGERPRINT_FILE).write_text("{")


@pytest.mark.parametrize(
    "change", [change_a_record, add_a_log, add_block_statistics, edit_the_page, delete_a_config, damage_the_fingerprint]
)
def test_a_changed_sweep_or_report_is_written_again(folder, change):
    change(folder)
    assert not is_up_to_date(folder)
    page = write_sweep_page(folder.path)
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert (folder.report / "best" / "knee.yaml").is_file()
    assert is_up_to_date(folder)


def test_a_sweep_that_ends_while_its_page_is_written_keeps_its_last_report(folder, monkeypatch):
    """`show --page` has read the running sweep, then the driver ends it and writes the last report."""
    ended, last_trial = folder.info(), folder.trial("trial-0002")
    folder.write_info(replace(ended, state="running", finished=None))
    folder.trial_file("trial-0002").unlink()
    drivers_folder = SweepFolder(folder.path)
    drivers_front = []

    def statistics_while_the_sweep_ends(*arguments):
        statistics = statistics_of(*arguments)
        if not drivers_front:
            drivers_front.append(None)  # the driver's own report comes through here, too
            drivers_folder.write_trial(last_trial)
            drivers_folder.write_info(ended)
            write_report(drivers_folder, pages=True)
            drivers_front[0] = (folder.report / "front.json").read_text()
        return statistics

    monkeypatch.setattr(writing, "statistics_of", statistics_while_the_sweep_ends)
    page = write_sweep_page(folder.path)
    assert (folder.report / "front.json").read_text() == drivers_front[0]
    assert "trial-0002" in page.read_text()
    assert is_up_to_date(folder)


def test_a_file_whose_name_is_no_text_is_noticed(folder):
    (folder.artifacts("trial-0001") / b"\xff.txt".decode(errors="surrogateescape")).write_text("a line")
    assert not is_up_to_date(folder)
    write_sweep_page(folder.path)
    assert is_up_to_date(folder)


def test_a_plugin_that_is_loaded_makes_the_report_out_of_date(folder, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    files = plugins.read([path])
    plugins.load(files)
    try:
        assert not is_up_to_date(folder)
    finally:
        plugins.unload(files[0])
    assert is_up_to_date(folder)


def test_the_report_of_a_copy_with_all_times_is_written_again(folder, tmp_path):
    """No folder can bring a page that is kept: the kernel sets the time of change."""
    moved = tmp_path / "moved"
    folder.path.rename(moved)
    shutil.copytree(moved, folder.path, copy_function=shutil.copy2)
    assert not is_up_to_date(folder)


def test_the_report_of_a_moved_folder_is_written_again(folder, tmp_path):
    folder.path.rename(tmp_path / "moved")
    assert not is_up_to_date(SweepFolder(tmp_path / "moved"))


def test_the_report_of_a_running_sweep_is_always_written_again(folder):
    folder.write_info(replace(folder.info(), state="running", finished=None))
    write_report(folder, pages=True)
    assert not is_up_to_date(folder)


def test_a_fingerprint_that_links_out_of_the_folder_is_replaced(folder, tmp_path):
    fingerprint = folder.report / FINGERPRINT_FILE
    elsewhere = tmp_path / "elsewhere"
    fingerprint.rename(elsewhere)
    before = elsewhere.read_text()
    fingerprint.symlink_to(elsewhere)
    write_sweep_page(folder.path)
    assert not fingerprint.is_symlink()
    assert elsewhere.read_text() == before
