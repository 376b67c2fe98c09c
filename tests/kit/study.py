"""The study that a sweep has written at its end, as a dashboard reads it."""

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend


def exported_study(file):
    """Return the only study in a file."""
    return optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(file))))
