"""Reading of parquet files that may come from anybody: files that are damaged or would fill the memory are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import compute, parquet, types

from fpp_sweep.spec.errors import InputError, message_in_one_line

# limits of a file that is read: rows and decoded bytes; a file without compression has far less for its size
FREE_ROWS = 2**20  # a file of any size may have as many rows
FREE_BYTES = 2**26  # and as many decoded bytes
MAX_RATIO = 64  # decoded bytes for each byte of the file beyond FREE_BYTES
BYTES_OF_NUMBER = 8
BYTES_OF_TEXT = 64  # a text takes as many in memory, besides its characters
TEXT = "BYTE_ARRAY"  # parquet's name for texts


def read_columns(path: Path, is_wanted: Callable[[str], bool], *, remedy: str) -> pyarrow.Table:
    """Return columns of a parquet file.

    Raise InputError, with the remedy, if it cannot be read, or `require_proportion` refuses it.
    """
    try:
        with parquet.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if is_wanted(name)]
            if len(set(names)) < len(names):
                raise InputError(f"{path}: has two columns of one name; {remedy}")
            texts = _text_columns(path, file, names, remedy)
            _require_small_columns(path, file, names)
        # columns of texts are read as positions in the list of distinct texts: one long text may stand in many rows
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            table = file.read(names)
        return _with_texts(path, table, texts)
    except InputError:
        raise
    except Exception as error:  # pyarrow raises nearly anything on a damaged file
        if isinstance(error, OSError) and error.errno:
            raise
        problem = message_in_one_line(error)
        raise InputError(f"{path}: not readable as parquet ({problem}); {remedy}") from error


def _columns_of(file: parquet.ParquetFile, names: Sequence[str]) -> Iterator[tuple[int, Any]]:
    """Yield position and description of the stored columns that hold named columns; a list's column is nested in it."""
    for position in range(file.metadata.num_columns):
        column = file.schema.column(position)
        if column.path in names or column.path.partition(".")[0] in names:
            yield position, column


def _text_columns(path: Path, file: parquet.ParquetFile, names: Sequence[str], remedy: str) -> list[str]:
    """Return the named columns that hold texts; raise InputError for lists of texts."""
    texts = []
    for _, column in _columns_of(file, names):
        if column.physical_type != TEXT:
            continue
        if column.max_repetition_level:
            raise InputError(f"{path}: `{column.path}` must hold numbers (lists of texts); {remedy}")
        texts.append(column.path)
    return texts


def _require_small_columns(path: Path, file: parquet.ParquetFile, names: Sequence[str]) -> None:
    """Check the memory that the named columns take, by the sizes that the file states."""
    decoded = 0
    for position, column in _columns_of(file, names):
        bytes_of_value = max(BYTES_OF_NUMBER, column.length)
        if column.physical_type == TEXT:
            bytes_of_value = max(BYTES_OF_TEXT, column.length)
        for group in range(file.metadata.num_row_groups):
            chunk = file.metadata.row_group(group).column(position)
            decoded += chunk.total_uncompressed_size + chunk.num_values * bytes_of_value
    require_proportion(path, decoded, file.metadata.num_rows)


def _with_texts(path: Path, table: pyarrow.Table, texts: Sequence[str]) -> pyarrow.Table:
    """Return a table whose columns of distinct texts are columns of texts, if these are not too long together."""
    total = 0
    for position, field in enumerate(table.schema):
        if not types.is_dictionary(field.type):
            continue
        column = table.column(position)
        if field.name in texts:
            for chunk in column.chunks:
                lengths = compute.binary_length(chunk.dictionary).take(chunk.indices)
                total += compute.sum(lengths).as_py() or 0
            require_proportion(path, total, table.num_rows)
        table = table.set_column(position, field.name, column.cast(field.type.value_type))
    return table


def require_proportion(path: Path, decoded: float, rows: int) -> None:
    """Raise InputError for a file that takes far more memory than its size, as no file of predictions does."""
    size = path.stat().st_size
    if rows > FREE_ROWS + size or decoded > FREE_BYTES + MAX_RATIO * size:
        raise InputError(
            f"{path}: would take {decoded / 2**20:.0f} MiB of memory, with {rows} rows, from a file of "
            f"{size / 2**20:.1f} MiB; if it is right, write it without compression"
        )


def require_texts(path: Path, table: pyarrow.Table) -> None:
    """Raise InputError unless a table has rows, and a column `id` with the name of each row's sample."""
    if "id" not in table.column_names:
        raise InputError(f"{path}: has no column `id`, the names of samples; delete it")
    if not table.num_rows or table["id"].null_count or not types.is_string(table["id"].type):
        raise InputError(f"{path}: `id` must hold names of samples ({table['id'].type}, {table.num_rows} rows)")
