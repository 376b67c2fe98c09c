"""Comparison of a trial's record with what is requested: another person may have written the record."""

from __future__ import annotations

from fpp_sweep.records.records import TrialRecord
from fpp_sweep.space.validation import at_key, require, shown
from fpp_sweep.spec import keys
from fpp_sweep.spec.config import TrialConfig


def require_config(record: TrialRecord, config: TrialConfig) -> None:
    """Raise InputError unless a record has this config and its key; another would run instead of what is requested.

    A setting that an older version of this package did not have, and did not record, counts as its default.
    """
    with at_key("config"):
        recorded = TrialConfig().replace(record.config).flat()
        for key, value in config.flat().items():
            problem = f"contradicts the space, which gives this trial {shown(value)} ({shown(recorded[key])})"
            require(recorded[key] == value, problem, key)
    key = keys.digest(dict(record.config), length=keys.CONFIG_LENGTH)
    require(record.key == key, f"is not that of its config, {key} ({shown(record.key)})", "key")
