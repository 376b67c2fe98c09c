"""Datasets that are present, and the missing files of all others."""

from __future__ import annotations

import hashlib
import os
import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path, PurePosixPath

from fpp_sweep.checks.checks import CHECKS
from fpp_sweep.core.datasets import (
    DATASETS,
    SPLITS,
    BadImageError,
    DatasetSpec,
    FileImages,
    Listing,
    custom_datasets,
    expand,
    list_split,
    require_root,
)
from fpp_sweep.report.table import Table, to_text
from fpp_sweep.spec.errors import InputError, escaped
from fpp_sweep.spec.files import user_path
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.progress import Bar

WIDTH = 100  # columns of a terminal, for the problems
ONE_LINE_PER_ROW = 10_000  # columns: rows are short, and problems stand below theirs
IMAGES_AT_ONCE = 256  # images that wait to be decoded; a queue of all of ImageNet's would fill the memory
HEADINGS = ("dataset", "found", "classes", *SPLITS)


@dataclass(frozen=True, slots=True)
class DatasetSurvey:
    """The splits of a dataset that can be listed, and the problems of the others."""

    name: str
    spec: DatasetSpec
    splits: Mapping[str, Listing]
    problems: Mapping[str, str]  # by split
    ignored_files: Collection[str]  # files of class folders that have no image suffix
    is_requested: bool  # by name, or as one of the user's own datasets

    @property
    def is_found(self) -> bool:
        return "test" in self.splits

    @property
    def is_sound(self) -> bool:
        return self.is_found and not self._shared_images()

    def cells(self) -> list[str]:
        """Return the row below `HEADINGS`."""
        presence, n_classes = "no", "-"
        counts = []
        for split in SPLITS:
            count = "-"
            if split in self.splits:
                listing = self.splits[split]
                count, n_classes = str(len(listing.ids)), str(len(listing.classes))
            counts.append(count)
        if self.is_found:
            presence = "yes"
        return [self.name, presence, n_classes, *counts]

    def notes(self) -> Iterator[str]:
        """Yield each problem once: of splits with their names, of the test split's size, and of a user's own data."""
        splits_by_problem: dict[str, list[str]] = {}
        for split, problem in self.problems.items():
            splits_by_problem.setdefault(problem, []).append(split)
        for problem, splits in splits_by_problem.items():
            if len(splits) == len(self.spec.layout.splits):
                yield problem
            else:
                yield f"{', '.join(splits)}: {problem}"
        published = self.spec.test_size
        if self.is_found and published is not None and len(self.splits["test"].ids) != published:
            yield f"test: {len(self.splits['test'].ids)} images, but {published} were published"
        if self.ignored_files:
            counts = _counts_by_suffix(self.ignored_files)
            yield f"ignored files: {counts}; convert the images among them to PNG or JPEG"
        if self.is_found:
            test = self.splits["test"]
            present = set(test.labels)
            empty = [name for label, name in enumerate(test.classes) if label not in present]
            if empty:
                yield f"test: {len(empty)} of {len(test.classes)} classes without images, such as {empty[0]}"
        for subject, problems in (("names of", self._repeated_names()), ("splits of", self._shared_images())):
            if problems:
                verdict = CHECKS[subject].rule(problems, ())
                yield f"{verdict.text}; {CHECKS[subject].remedy}"

    def _repeated_names(self) -> list[str]:
        """Return the class names that a user's own dataset has twice; the classes of all splits are equal."""
        if self.spec.group != "custom" or not self.splits:
            return []
        return repeated_names(next(iter(self.splits.values())).classes)

    def _shared_images(self) -> list[str]:
        """Return a text for each two splits of a user's own dataset that have images in common."""
        if self.spec.group != "custom":
            return []
        return shared_images({split: listing.ids for split, listing in self.splits.items()})


def repeated_names(classes: Sequence[str]) -> list[str]:
    """Return the names that several classes have; CLIP reads them in lower case."""
    counts = Counter(name.lower() for name in classes)
    return [name for name, count in counts.items() if count > 1]


def shared_images(ids_by_split: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a text for each two splits that have images in common."""
    texts = []
    for first, second in combinations(ids_by_split, 2):
        shared = sorted({*ids_by_split[first]} & {*ids_by_split[second]})
        if shared:
            texts.append(f"{first} and {second} share {plural(len(shared), 'image')}, such as {shared[0]}")
    return texts


def survey_datasets(names: Sequence[str], data_root: str | None, dataset_file: str | None) -> list[DatasetSurvey]:
    """List the splits of datasets and groups; without names, of all embedded, known and user-defined datasets."""
    root = None
    if data_root is not None:
        root = user_path(data_root)
        require_root(root)
    custom = custom_datasets(names, dataset_file)
    specs = {**DATASETS, **custom}
    surveys = []
    for name in expand(names or ["all"], custom):
        is_requested = bool(names) or name in custom
        surveys.append(_survey(name, specs[name], root, is_requested=is_requested))
    return surveys


def _survey(name: str, spec: DatasetSpec, root: Path | None, *, is_requested: bool) -> DatasetSurvey:
    splits, problems = {}, {}
    ignored: set[str] = set()
    for split in spec.layout.splits:
        try:
            splits[split] = list_split(name, spec, split, root)
            ignored.update(spec.layout.ignored_files(root or Path(), split))
        except InputError as error:
            problems[split] = str(error).removeprefix(f"{name}: ").replace(f"{root}{os.sep}", "")
    return DatasetSurvey(name, spec, splits, problems, ignored, is_requested)


def _counts_by_suffix(files: Collection[str]) -> str:
    """Return the number of files of each suffix, such as `3 .heic, 1 .txt`; the most frequent suffix is the first."""
    counts = Counter(PurePosixPath(file).suffix or "without suffix" for file in sorted(files))
    return ", ".join(f"{count} {suffix}" for suffix, count in counts.most_common())


def dataset_table(surveys: Sequence[DatasetSurvey], root: str | None) -> str:
    """Return a row for each dataset with its problems below; paths are relative to the data root.

    A problem that several datasets have is given once, at the end.
    """
    datasets_by_problem: dict[str, list[str]] = {}
    for survey in surveys:
        for problem in survey.notes():
            datasets_by_problem.setdefault(problem, []).append(survey.name)
    table = Table.of_strings(HEADINGS, [survey.cells() for survey in surveys], text_columns=(0, 1))
    heading, *rows = to_text(table, ONE_LINE_PER_ROW).splitlines()
    lines = [heading]
    if root is not None:
        lines.insert(0, f"data root: {escaped(root)}")
    for survey, row in zip(surveys, rows, strict=True):
        lines.append(row)
        for problem in survey.notes():
            if len(datasets_by_problem[problem]) == 1:
                lines += _indented(problem)
    for problem, names in datasets_by_problem.items():
        if len(names) > 1:
            lines += _indented(f"{', '.join(names)}: {problem}")
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    wrapper = textwrap.TextWrapper(WIDTH, "    ", "    ", break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(escaped(text))


def unreadable_images(surveys: Sequence[DatasetSurvey]) -> tuple[list[str], int]:
    """Open every image file; return the problems, and how many images were opened."""
    problems: list[str] = []
    total = 0
    for survey in surveys:
        if survey.spec.group == "tiny":  # drawn on demand: no file that could be damaged
            continue
        for split, listing in survey.splits.items():
            total += len(listing.ids)
            problems += _unreadable(f"{survey.name}/{split}", listing)
    return problems, total


def _unreadable(label: str, listing: Listing) -> list[str]:
    """Return the problems of a split's images. Decoding releases Python's lock, so threads share it."""

    def problem_of(sample: str) -> str:
        try:
            listing.source.image(sample)
        except BadImageError as error:
            return str(error)
        return ""

    problems: list[str] = []
    total = len(listing.ids)
    with ThreadPoolExecutor(os.cpu_count()) as threads, Bar(label, total, "images") as bar:
        for start in range(0, total, IMAGES_AT_ONCE):
            batch = listing.ids[start : start + IMAGES_AT_ONCE]
            problems += [problem for problem in threads.map(problem_of, batch) if problem]
            bar.advance(len(batch))
    return problems


def copies_in_two_splits(surveys: Sequence[DatasetSurvey]) -> list[str]:
    """Return a text for each two splits of a user's own dataset with equal image files under two names."""
    texts = []
    for survey in surveys:
        if survey.spec.group != "custom":
            continue
        ids_by_split = _ids_by_content(survey.splits)
        for first, second in combinations(ids_by_split, 2):
            copies = []
            for content, sample in ids_by_split[first].items():
                copy = ids_by_split[second].get(content, sample)
                if copy != sample:  # `dataset_table` reports one name in two splits
                    copies.append(f"{sample} and {copy}")
            if copies:
                number = plural(len(copies), "equal image")
                problem = f"{survey.name}: {first} and {second} hold {number}, such as {min(copies)}"
                texts.append(f"{problem}; {CHECKS['splits of'].remedy}")
    return texts


def _ids_by_content(splits: Mapping[str, Listing]) -> dict[str, dict[str, str]]:
    """Return the names of each split's images by the digest of their files; a file of a unique size has no copy."""
    sizes = {split: _sizes(listing) for split, listing in splits.items()}
    files_of_size: Counter[int] = Counter()
    for size_by_path in sizes.values():
        files_of_size.update(size_by_path.values())
    ids_by_split: dict[str, dict[str, str]] = {}
    for split, listing in splits.items():
        ids = ids_by_split.setdefault(split, {})
        for sample, (path, size) in zip(listing.ids, sizes[split].items(), strict=True):
            if size and files_of_size[size] > 1:
                with path.open("rb") as file:
                    ids[hashlib.file_digest(file, "sha256").hexdigest()] = sample
    return ids_by_split


def _sizes(listing: Listing) -> dict[Path, int]:
    """Return the size of each image's file, in the order of the images; 0 if it cannot be opened."""
    assert isinstance(listing.source, FileImages)  # as all of a user's own images
    sizes = {}
    for sample in listing.ids:
        path = listing.source.folder / sample
        sizes[path] = 0
        if os.access(path, os.R_OK):
            sizes[path] = path.stat().st_size
    return sizes
