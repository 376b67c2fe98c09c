"""The public interface: a sweep read from its folder."""

import pytest

import fpp_sweep
from fpp_sweep.spec import keys
from fpp_sweep.spec.catalogue import COLUMNS_OF_TRIALS
from fpp_sweep.spec.errors import InputError
from fpp_sweep.sweep.api import Sweep
from tests.kit.records import build_sweep


def test_public_names_are_loaded_when_used_and_listed_for_completion():
    for name in fpp_sweep.__all__:
        assert getattr(fpp_sweep, name)
    assert dir(fpp_sweep) == sorted(fpp_sweep.__all__)
    with pytest.raises(AttributeError, match="module 'fpp_sweep' has no attribute 'tune_all'"):
        fpp_sweep.tune_all  # noqa: B018


def test_a_sweep_opens_by_its_name(tmp_path, monkeypatch):
    folder = build_sweep(tmp_path / "sweeps/made", trials=2)
    monkeypatch.chdir(tmp_path)
    assert Sweep.open("made").name == Sweep.open(folder.path).name == "made"
    with pytest.raises(InputError, match="did you mean 'made'"):
        Sweep.open("mad")
    with pytest.raises(InputError, match="not a sweep's folder"):
        Sweep.open(tmp_path)


def test_a_sweep_is_read_from_its_folder_as_a_table_and_a_front(tmp_path):
    sweep = Sweep.open(build_sweep(tmp_path / "made", trials=6, failed_trials=(3,)).path)
    rows = {row["name"]: row for row in sweep.table()}
    assert len(rows) == len(sweep.trials())
    assert rows["trial-0003"]["state"] == "failed"
    assert "ece" not in rows["trial-0003"]
    settings_searched = sweep.trial("trial-0003").record.params
    assert rows["trial-0003"].keys() - settings_searched.keys() == set(COLUMNS_OF_TRIALS)
    members = sweep.front()
    assert members
    assert keys.config_key(sweep.best("knee")) in {member.key for member in members}
    with pytest.raises(InputError, match="has no 'best f1'; it has best accuracy"):
        sweep.best("best f1")
