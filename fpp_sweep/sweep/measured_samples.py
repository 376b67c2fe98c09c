"""The samples on which a sweep has results, from the predictions of its records."""

from __future__ import annotations

from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.errors import InputError
from fpp_sweep.trial.artifacts import FITTED_ON, prediction_files
from fpp_sweep.trial.imported import Samples, read_samples
from fpp_sweep.trial.posthoc import FITTED_SPLIT


class MeasuredSamples:
    """Samples of a sweep, from the predictions of its records."""

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder
        self._records = [record for record in folder.trials() if record.state == "complete"]
        self.splits: set[str] = set()
        for record in self._records:
            self.splits.update(record.results)

    def samples(self, dataset: str, split: str) -> Samples:
        """Return the samples of a dataset: of the record with the most of them, if images were skipped."""
        candidates = self._files(dataset, split)
        if not candidates and split == FITTED_SPLIT:
            candidates = self._files(dataset, f"test/{FITTED_ON}")
        if not candidates:
            splits = ", ".join(sorted(self.splits)) or "no split"
            raise InputError(f"the sweep has no predictions of {dataset} on split {split} to compare with ({splits})")
        samples_by_record = [read_samples(file, dataset, split) for file in candidates]
        return max(samples_by_record, key=lambda samples: len(samples.labels))

    def _files(self, dataset: str, subfolder: str) -> list[Path]:
        """Return a file of predictions of each record."""
        files = []
        for record in self._records:
            files += prediction_files(self._folder.artifacts(record.name), subfolder, dataset)[:1]
        return files
