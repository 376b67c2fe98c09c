"""A sweep's folder that somebody else sent may hold links: no command follows one out of the folder."""

import pytest

from fpp_sweep import show
from fpp_sweep.report.writing import write_report
from fpp_sweep.spec.errors import InputError
from fpp_sweep.tracking.desired import artifact_files
from tests.kit.records import build_sweep


@pytest.fixture
def sweep(tmp_path):
    return build_sweep(tmp_path / "sent")


def link_out(path, target):
    """Replace a file or folder by a link to another place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(f"{path}.before")
    path.symlink_to(target)


def test_a_report_deletes_nothing_behind_a_link(sweep, tmp_path):
    outside = tmp_path / "my_configs"
    outside.mkdir()
    (outside / "mine.yaml").write_text("config: {}\n")
    link_out(sweep.report / "best", outside)
    with pytest.raises(InputError, match=r"report/best: a link leads out of .*sent; remove the link"):
        write_report(sweep, pages=False)
    assert [path.name for path in outside.iterdir()] == ["mine.yaml"]


def test_a_report_deletes_only_configs_that_a_report_wrote(sweep):
    best = sweep.report / "best"
    (best / "mine.yaml").write_text("config: {}\n")
    (best / "knee.yaml").write_text("# of the user\n")
    write_report(sweep, pages=False)
    written = {path.name for path in best.glob("[!.]*")}
    (member,) = [record.name for record in sweep.trials() if f"{record.name}.yaml" in written][:1]
    sweep.trial_file(member).unlink()
    write_report(sweep, pages=False)
    left = {path.name for path in best.glob("[!.]*")}
    assert "mine.yaml" in left
    (kept,) = best.glob("knee.yaml.damaged-*")
    assert kept.read_text() == "# of the user\n"
    assert f"{member}.yaml" not in left


@pytest.mark.parametrize("part", ["log.txt", "prompts", ""])
def test_show_prints_nothing_that_lies_behind_a_link(sweep, tmp_path, part, capsys):
    secret = tmp_path / "secret"
    if part == "log.txt":
        secret.write_text("password\n")
    else:
        secret.mkdir()
        (secret / "log.txt").write_text("password\n")
    link_out(sweep.artifacts("trial-0001") / part, secret)
    with pytest.raises(InputError, match="a link leads out of"):
        show.main([str(sweep.path), "trial-0001"])
    assert "password" not in capsys.readouterr().out


def test_sync_does_not_walk_a_folder_behind_a_link(sweep, tmp_path, monkeypatch):
    outside = tmp_path / "large"
    outside.mkdir()
    (outside / "file").write_text("")
    link_out(sweep.artifacts("trial-0001"), outside)
    left_out = set()
    assert artifact_files(sweep, sweep.artifacts("trial-0001"), "", left_out) == {}
    assert left_out == {"artifacts/trial-0001"}
