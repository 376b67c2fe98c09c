"""Datasets that are present, and the missing files of all others."""

from __future__ import annotations

import hashlib
import os
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path, PurePosixPath

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

WIDTH = 100  # columns of a terminal
PROBLEMS = textwrap.TextWrapper(WIDTH, "    ", "      ", break_long_words=False, break_on_hyphens=False)
IMAGES_AT_ONCE = 256  # images that wait to be decoded; a queue of all of ImageNet's would fill the memory
REMEDY_OF_SHARED = "take these images out of one of the two splits"
HEADINGS = ("dataset", "found", "classes", *SPLITS)


@dataclass(frozen=True, slots=True)
class DatasetSurvey:
    """The splits of a dataset that can be listed, and the problems of the others."""

    name: str
    spec: DatasetSpec
    splits: Mapping[str, Listing]
    problems: Mapping[str, str]  # by split
    ignored_files: Collection[str] = ()  # files of class folders that have no image suffix
    is_requested: bool = True  # by name, or as one of the user's own datasets

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

    def faults(self) -> Iterator[str]:
        """Yield each problem of splits once, and the splits of a user's own dataset that have images in common."""
        splits_by_problem: dict[str, list[str]] = {}
        for split, problem in self.problems.items():
            splits_by_problem.setdefault(problem, []).append(split)
        for problem, splits in splits_by_problem.items():
            if len(splits) == len(self.spec.layout.possible_splits):
                yield problem
            else:
                yield f"{', '.join(splits)}: {problem}"
        for shared in self._shared_images():
            yield f"{shared}; {REMEDY_OF_SHARED}"

    def notes(self) -> Iterator[str]:
        """Yield what changes results without stopping a sweep."""
        published = self.spec.test_size
        if self.is_found and published is not None and len(self.splits["test"].ids) != published:
            yield f"test: {len(self.splits['test'].ids)} images, but {published} were published"
        if self.ignored_files:
            counts = _counts_by_suffix(self.ignored_files)
            yield f"ignored files: {counts}; convert the images among them to PNG or JPEG"
        for split, listing in self.splits.items():
            present = set(listing.labels)
            empty = [name for label, name in enumerate(listing.classes) if label not in present]
            if empty:
                yield f"{split}: {len(empty)} of {len(listing.classes)} classes without images, such as {empty[0]}"
        if self.spec.group == "custom" and self.splits:
            classes = next(iter(self.splits.values())).classes  # all splits have the same classes
            ((name, count),) = Counter(name.lower() for name in classes).most_common(1)  # CLIP reads lower case
            if count > 1:
                yield f"several classes are called {name}; give each class its own name"

    def _shared_images(self) -> list[str]:
        """Return a text for each two splits of a user's own dataset that have images in common."""
        if self.spec.group != "custom":
            return []
        texts = []
        for first, second in combinations(self.splits, 2):
            shared = sorted({*self.splits[first].ids} & {*self.splits[second].ids})
            if shared:
                texts.append(f"{first} and {second} share {plural(len(shared), 'image')}, such as {shared[0]}")
        return texts


def survey_datasets(names: Sequence[str], data_root: str | None, dataset_file: str | None) -> list[DatasetSurvey]:
    """List the splits of datasets and groups; without names, of all embedded, known and user-defined datasets."""
    if data_root is not None:
        require_root(user_path(data_root))
    custom = custom_datasets(names, dataset_file)
    specs = {**DATASETS, **custom}
    surveys = []
    for name in expand(names or ["all"], custom):
        survey = survey_dataset(name, specs[name], data_root, specs[name].layout.possible_splits)
        surveys.append(replace(survey, is_requested=bool(names) or name in custom))
    return surveys


def survey_dataset(name: str, spec: DatasetSpec, data_root: str | None, splits: Iterable[str]) -> DatasetSurvey:
    """List the splits of a dataset, as far as they can be."""
    root = None
    if data_root is not None:
        root = user_path(data_root)
    listings, problems = {}, {}
    ignored: set[str] = set()
    for split in splits:
        try:
            listings[split] = list_split(name, spec, split, root)
            ignored.update(spec.layout.ignored_files(spec.root or root or Path(), split))
        except InputError as error:
            problems[split] = str(error).removeprefix(f"{name}: ").replace(f"{root}{os.sep}", "")
    return DatasetSurvey(name, spec, listings, problems, ignored)


def _counts_by_suffix(files: Collection[str]) -> str:
    """Return the number of files of each suffix, such as `3 .heic, 1 .txt`; the most frequent suffix is the first."""
    counts = Counter(PurePosixPath(file).suffix or "without suffix" for file in sorted(files))
    return ", ".join(f"{count} {suffix}" for suffix, count in counts.most_common())


def dataset_table(surveys: Sequence[DatasetSurvey], root: str | None) -> str:
    """Return a row for each dataset, and each problem with the datasets that have it; paths start at the data root."""
    datasets_by_problem: dict[str, list[str]] = {}
    for survey in surveys:
        for problem in [*survey.faults(), *survey.notes()]:
            datasets_by_problem.setdefault(problem, []).append(survey.name)
    lines = [to_text(Table.of_strings(HEADINGS, [survey.cells() for survey in surveys], text_columns=(0, 1)), WIDTH)]
    if root is not None:
        lines.insert(0, f"data root: {escaped(root)}")
    for problem, names in datasets_by_problem.items():
        lines += PROBLEMS.wrap(escaped(f"{', '.join(names)}: {problem}"))
    return "\n".join(lines)


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
        ids_by_split = {split: _ids_by_content(listing) for split, listing in survey.splits.items()}
        for first, second in combinations(ids_by_split, 2):
            copies = []
            for content in ids_by_split[first].keys() & ids_by_split[second].keys():
                sample, copy = ids_by_split[first][content], ids_by_split[second][content]
                if copy != sample:  # `dataset_table` reports one name in two splits
                    copies.append(f"{sample} and {copy}")
            if copies:
                number = plural(len(copies), "equal image")
                problem = f"{survey.name}: {first} and {second} hold {number}, such as {min(copies)}"
                texts.append(f"{problem}; {REMEDY_OF_SHARED}")
    return texts


def _ids_by_content(listing: Listing) -> dict[str, str]:
    """Return the names of a split's images by the digests of their files; damaged files are reported elsewhere."""
    assert isinstance(listing.source, FileImages)  # as all of a user's own images
    ids = {}
    for sample in listing.ids:
        path = listing.source.folder / sample
        if os.access(path, os.R_OK) and path.stat().st_size:
            with path.open("rb") as file:
                ids[hashlib.file_digest(file, "sha256").hexdigest()] = sample
    return ids
