"""Files of predictions: damaged ones, those that would fill the memory, and names that lead out of the folder."""

import json
import re
import tracemalloc
from contextlib import suppress

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import DatasetInfo
from fpp_sweep.trial.artifacts import (
    prediction_files,
    read_or_compute_block_stats,
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


def damaged_file(path, changes, classes='["a cat", "a dog"]', **options):
    """Write predictions to a file with some of the columns changed, and without those that are None."""
    write_predictions(predictions(logits=np.zeros((2, 2), np.float32)), CLASSES, path)
    table = parquet.read_table(path)
    columns = {name: table[name] for name in table.column_names} | changes
    columns = {name: values for name, values in columns.items() if values is not None}
    parquet.write_table(pyarrow.table(columns).replace_schema_metadata({"classes": classes}), path, **options)
    return path


# --- names and links -------------------------------------------------------------------------------


def test_characters_of_a_dataset_name_are_no_pattern(tmp_path):
    for dataset in ("e", "[e]", "x*"):
        write_artifacts(tmp_path, [result_of(dataset)], "val", "title")
    for dataset in ("e", "[e]", "x*"):
        (file,) = prediction_files(tmp_path, "val", dataset)
        assert file.name == f"{dataset}.seed0.predictions.parquet"
    assert prediction_files(tmp_path, "val", "*") == []
    assert len(prediction_files(tmp_path, "val")) == 3


# --- damaged files ---------------------------------------------------------------------------------


SAMPLES = {
    "no names": ({"id": None}, {}, "no column `id`"),
    "numbers as names": ({"id": [1, 2]}, {}, "`id` must hold names of samples"),
    "a missing name": ({"id": ["a", None]}, {}, "`id` must hold names of samples"),
    "no labels": ({"label": None}, {}, "no whole number `label`"),
    "texts as labels": ({"label": ["p", "q"]}, {}, "no whole number `label`"),
    "a missing label": ({"label": [None, 1]}, {}, "no whole number `label`"),
    "a label beyond the classes": ({"label": [0, 9]}, {}, "none of its 2 classes"),
    "a negative label": ({"label": [-1, 1]}, {}, "none of its 2 classes"),
    "classes that are no JSON": ({}, {"classes": "nojson"}, "does not name its classes"),
    "one number as classes": ({}, {"classes": "5"}, "does not name its classes"),
    "numbers as classes": ({}, {"classes": "[1, 2]"}, "does not name its classes"),
    "deep classes": ({}, {"classes": "[" * 100_000}, "does not name its classes"),
    "no classes": ({}, {"classes": "[]"}, "does not name its classes"),
}


@pytest.mark.parametrize(("changes", "options", "message"), SAMPLES.values(), ids=SAMPLES)
def test_samples_of_a_damaged_file_are_refused(tmp_path, changes, options, message):
    with pytest.raises(InputError, match=message):
        read_samples(damaged_file(tmp_path / FILE, changes, **options), "digits", "val")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 100, b"no parquet"])
def test_a_file_that_is_no_parquet_is_refused(tmp_path, content):
    file = tmp_path / "val" / FILE
    file.parent.mkdir()
    file.write_bytes(content)
    with pytest.raises(InputError, match=rf"{FILE}: not readable as parquet \(.*\); evaluate again$"):
        read_samples(file, "digits", "val")
    with pytest.raises(InputError, match=rf"{FILE}: not readable as parquet \(.*\); delete it$"):
        read_or_compute_block_stats(tmp_path, "val")
    with pytest.raises(InputError, match=rf"{FILE}: not readable as parquet \(.*\); write it again$"):
        read_rows(file)


def test_lists_of_texts_and_a_file_without_rows_are_refused_with_a_remedy(tmp_path):
    texts = damaged_file(tmp_path / FILE, {"logits": [["a"], ["b"]]})
    with pytest.raises(InputError, match=r"`logits[^`]*` must hold numbers \(lists of texts\); write it again$"):
        read_rows(texts)
    for name in ("empty.csv", "empty.npz"):
        file = tmp_path / name
        if file.suffix == ".csv":
            file.write_text("id,logits.0,logits.1\n")
        else:
            np.savez(file, id=np.array([], str), logits=np.zeros((0, 2)))
        with pytest.raises(InputError, match=f"{name}: has no rows; write one for each sample$"):
            read_rows(file)


PREDICTIONS = {
    "no losses": {"nll": None},
    "a missing loss": {"nll": [1.0, None]},
    "texts as losses": {"brier": ["a", "b"]},
    "losses that are no numbers": {"nll": [1.0, np.nan]},
    "a negative loss": {"nll": [1.0, -1.0]},
    "a confidence beyond one": {"confidence": [0.5, 1.5]},
    "texts as predicted classes": {"predicted": ["a", "b"]},
    "numbers as names": {"id": [1, 2]},
}


@pytest.mark.parametrize("changes", PREDICTIONS.values(), ids=PREDICTIONS)
def test_damaged_predictions_are_refused_where_metrics_are_computed_again(tmp_path, changes):
    (tmp_path / "val").mkdir()
    damaged_file(tmp_path / "val" / FILE, changes)
    with pytest.raises(InputError, match=r"`(nll|brier|confidence|predicted|id)`"):
        read_or_compute_block_stats(tmp_path, "val")


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
def test_a_file_that_does_not_exist_is_not_called_damaged(tmp_path, suffix):
    file = tmp_path / f"nofile{suffix}"
    with pytest.raises(InputError, match=rf"^{re.escape(str(file))}: does not exist; give a file that does$"):
        read_rows(file)


def test_a_file_without_rows_and_one_without_a_seed_are_refused(tmp_path):
    (tmp_path / "val").mkdir()
    file = damaged_file(tmp_path / "val" / FILE, {})
    file.rename(file.with_name("digits.seedx.predictions.parquet"))
    with pytest.raises(InputError, match="not readable as predictions"):
        read_or_compute_block_stats(tmp_path, "val")
    parquet.write_table(parquet.read_table(file.with_name("digits.seedx.predictions.parquet")).slice(0, 0), file)
    file.with_name("digits.seedx.predictions.parquet").unlink()
    with pytest.raises(InputError, match="0 rows"):
        read_or_compute_block_stats(tmp_path, "val")


def test_names_that_are_stored_once_each_are_read(tmp_path):
    (tmp_path / "val").mkdir()
    damaged_file(tmp_path / "val" / FILE, {})
    expected = read_or_compute_block_stats(tmp_path, "val")["digits", 0]
    damaged_file(tmp_path / "val" / FILE, {"id": pyarrow.array(["0.png", "1.png"]).dictionary_encode()})
    assert np.array_equal(read_or_compute_block_stats(tmp_path, "val")["digits", 0].digests, expected.digests)


def test_two_columns_of_one_name_are_refused(tmp_path):
    parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, ["id", "id"]), tmp_path / FILE)
    with pytest.raises(InputError, match="two columns of one name"):
        read_samples(tmp_path / FILE, "digits", "val")


# --- files that would fill the memory -----------------------------------------------------------------


def refuse(read, path):
    """Return the bytes of Python's and Arrow's memory that it takes to refuse a small file."""
    assert path.stat().st_size < 300_000
    before = pyarrow.total_allocated_bytes()
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="MiB of memory"):
            read(path)
        return tracemalloc.get_traced_memory()[1] + pyarrow.total_allocated_bytes() - before
    finally:
        tracemalloc.stop()


def many_rows(path):
    rows = 3_000_000
    names = pyarrow.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["a" * 100])
    table = pyarrow.table({"id": names, "label": np.zeros(rows, np.int8), "logits.0": np.zeros(rows)})
    parquet.write_table(table.replace_schema_metadata({"classes": json.dumps(CLASSES)}), path, compression="zstd")


def one_long_name(path):
    names = pyarrow.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), ["a" * 100_000])
    table = pyarrow.table({"id": names, "label": np.zeros(20_000, np.int8), "logits.0": np.zeros(20_000)})
    parquet.write_table(table.replace_schema_metadata({"classes": json.dumps(CLASSES)}), path, compression="zstd")


@pytest.mark.parametrize("write", [many_rows, one_long_name])
def test_a_small_parquet_file_of_many_texts_is_refused(tmp_path, write):
    path = tmp_path / "theirs.parquet"
    write(path)
    for read in (lambda file: read_samples(file, "digits", "val"), read_predictions, read_rows):
        assert refuse(read, path) < 20 * 2**20


def test_one_long_list_does_not_widen_all_rows(tmp_path):
    lists = [[0.0] * 20_000, *([[0.0]] * 20_000)]
    path = tmp_path / "theirs.parquet"
    parquet.write_table(pyarrow.table({"id": [str(row) for row in range(len(lists))], "logits": lists}), path)
    assert refuse(read_rows, path) < 50 * 2**20


def test_a_small_npz_file_of_many_numbers_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "theirs.npz", id=np.array(["a"]), logits=np.zeros((2**14, 1000)))
    assert refuse(read_rows, tmp_path / "theirs.npz") < 2**20
    np.savez_compressed(tmp_path / "theirs.npz", id=np.array(["a"]), logits=np.zeros((2**14, 2000), np.int8))
    assert refuse(read_rows, tmp_path / "theirs.npz") < 100 * 2**20


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_predictions_of_many_images_are_read(tmp_path, suffix):
    images, classes = 20_000, 100
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(images, classes)).astype(np.float32)
    path = tmp_path / f"theirs.{suffix}"
    names = [f"val/{index:05d}.jpg" for index in range(images)]
    if suffix == "npz":
        np.savez_compressed(path, id=np.array(names), logits=logits)
    else:
        parquet.write_table(pyarrow.table({"id": names, "logits": list(logits), "dataset": ["a"] * images}), path)
    assert np.array_equal(read_rows(path).values, logits)


def test_own_predictions_of_many_images_are_read(tmp_path):
    (tmp_path / "val").mkdir()
    write_predictions(predictions(50_000), CLASSES, tmp_path / "val" / FILE)  # all but the names are the same
    assert len(read_samples(tmp_path / "val" / FILE, "digits", "val").labels) == 50_000
    assert read_or_compute_block_stats(tmp_path, "val")["digits", 0].total == 50_000


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


def test_a_negative_seed_is_refused(tmp_path):
    """A file of predictions has its seed in its name, without a sign."""
    file = tmp_path / "theirs.npz"
    np.savez(file, id=np.array(["a", "b"]), seed=np.array([0, -1]), logits=np.ones((2, 3)))
    with pytest.raises(InputError) as refused:
        read_rows(file)
    assert str(refused.value) == f"{file}: `seed` must be >= 0 (-1)"


@pytest.mark.parametrize("values", [np.array([["a", "b"]]), np.array([[1j, 2j]]), np.array([["2020-01-01"]], "M8")])
def test_values_that_are_no_numbers_are_refused(tmp_path, values):
    np.savez(tmp_path / "theirs.npz", id=np.array(["a"]), logits=values)
    with pytest.raises(InputError, match="logits must hold numbers"):
        read_rows(tmp_path / "theirs.npz")


def test_a_null_row_of_logits_is_a_row_without_numbers(tmp_path):
    path = tmp_path / "theirs.parquet"
    parquet.write_table(pyarrow.table({"id": ["a", "b"], "logits": [[1.0, 2.0], None]}), path)
    assert np.isnan(read_rows(path).values).tolist() == [[False, False], [True, True]]


def test_categories_of_pandas_are_read(tmp_path):
    path = tmp_path / "theirs.parquet"
    seeds = pyarrow.array([1, 1]).dictionary_encode()
    names = pyarrow.array(["x", "x"]).dictionary_encode()
    columns = {"id": ["a", "b"], "dataset": names, "seed": seeds, "logits": [[1.0, 2.0]] * 2}
    parquet.write_table(pyarrow.table(columns), path)
    rows = read_rows(path)
    assert rows.columns["dataset"].tolist() == ["x", "x"]
    assert rows.columns["seed"].tolist() == [1, 1]
