"""Files of predictions: damaged ones, and names that are patterns."""

import json
import re
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import DatasetInfo
from fpp_sweep.trial.artifacts import (
    dataset_and_seed,
    prediction_files,
    read_predictions,
    write_artifacts,
    write_predictions,
)
from fpp_sweep.trial.imported import read_rows, read_samples
from fpp_sweep.trial.trial import DatasetResult

CLASSES = ("a cat", "a dog")
FILE = "digits.seed0.predictions.parquet"


def predictions(images=2, **columns):
    probabilities = np.tile(np.array([[0.75, 0.25]], np.float32), (images, 1))
    labels = np.arange(images) % 2
    return Predictions.of([f"{index}.png" for index in range(images)], labels, probabilities, columns)


def result_of(dataset):
    info = DatasetInfo(name=dataset, split="val", group="custom", classes=CLASSES, size=2, digest="", images="")
    return DatasetResult(dataset=info, seed=0, predictions=predictions(), prompt=b"prompt")


def damaged_file(path, changes):
    """Write predictions to a file with some of the columns changed, and without those that are None."""
    write_predictions(predictions(logits=np.zeros((2, 2), np.float32)), CLASSES, path)
    table = parquet.read_table(path)
    columns = {name: table[name] for name in table.column_names} | changes
    columns = {name: values for name, values in columns.items() if values is not None}
    parquet.write_table(pyarrow.table(columns).replace_schema_metadata({"classes": json.dumps(CLASSES)}), path)
    return path


# --- names and links -------------------------------------------------------------------------------


def test_characters_of_a_dataset_name_are_no_pattern(tmp_path):
    write_artifacts(tmp_path, [result_of(dataset) for dataset in ("e", "[e]", "x*")], "val", "title")
    for dataset in ("e", "[e]", "x*"):
        (file,) = prediction_files(tmp_path, "val", dataset)
        assert file.name == f"{dataset}.seed0.predictions.parquet"
    assert prediction_files(tmp_path, "val", "*") == []
    assert len(prediction_files(tmp_path, "val")) == 3


def test_predictions_of_an_earlier_run_with_other_seeds_are_removed(tmp_path):
    for seed in (0, 7):
        write_artifacts(tmp_path, [replace(result_of("e"), seed=seed)], "val", "title")
    assert [file.name for file in prediction_files(tmp_path, "val")] == ["e.seed7.predictions.parquet"]


# --- damaged files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["id", "label"])
def test_samples_of_a_file_without_a_column_are_refused(tmp_path, column):
    with pytest.raises(InputError, match="lacks names of samples, labels or classes; evaluate again"):
        read_samples(damaged_file(tmp_path / FILE, {column: None}), "digits", "val")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 100, b"no parquet"])
def test_a_file_that_is_no_parquet_is_refused(tmp_path, content):
    file = tmp_path / "val" / FILE
    file.parent.mkdir()
    file.write_bytes(content)
    with pytest.raises(InputError, match=rf"{FILE}: not readable as parquet \(.*\); evaluate again$"):
        read_samples(file, "digits", "val")
    with pytest.raises(InputError, match=rf"{FILE}: not readable as parquet \(.*\); delete it$"):
        read_predictions(file)
    with pytest.raises(InputError, match=rf"{FILE}: not readable as parquet \(.*\); write it again$"):
        read_rows(file)


def test_a_file_without_rows_is_refused(tmp_path):
    file = tmp_path / "empty.npz"
    np.savez(file, id=np.array([], str), logits=np.zeros((0, 2)))
    with pytest.raises(InputError, match=r"empty\.npz: has no rows; write one for each sample$"):
        read_rows(file)


def test_predictions_without_a_column_are_refused(tmp_path):
    (tmp_path / "val").mkdir()
    file = damaged_file(tmp_path / "val" / FILE, {"nll": None})
    with pytest.raises(InputError, match="has no column `nll`; delete it"):
        read_predictions(file)


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_file_that_does_not_exist_is_not_called_damaged(tmp_path, suffix):
    file = tmp_path / f"nofile{suffix}"
    with pytest.raises(InputError, match=rf"^{re.escape(str(file))}: does not exist; give a file that does$"):
        read_rows(file)


def test_a_file_without_a_seed_in_its_name_is_refused(tmp_path):
    (tmp_path / "val").mkdir()
    damaged_file(tmp_path / "val" / "digits.seedx.predictions.parquet", {})
    with pytest.raises(InputError, match="not readable as predictions"):
        dataset_and_seed(tmp_path / "val" / "digits.seedx.predictions.parquet")


# --- files of other programs that are damaged --------------------------------------------------------------


def test_a_damaged_npz_file_is_refused_in_one_line(tmp_path):
    path = tmp_path / "theirs.npz"
    np.savez_compressed(path, id=np.array(["a", "b"]), logits=np.zeros((2, 2)))
    content = path.read_bytes()
    for position in range(0, len(content), 3):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        with suppress(InputError):  # some bytes do not matter
            read_rows(path)
    np.save(path.with_suffix(".npy"), np.zeros(3))
    path.with_suffix(".npy").rename(path)
    with pytest.raises(InputError, match="not readable as npz"):
        read_rows(path)
