"""Labelled images by name: `open_dataset("dtd", "test", root)`; `catalogue.py` lists every dataset."""

from fpp_sweep.core.datasets.catalogue import DATASETS, GROUPS, expand, imagenet_classes, resolve
from fpp_sweep.core.datasets.dataset import SPLITS, BadImageError, Dataset, FileImages, Group, ImageSource, fair_order
from fpp_sweep.core.datasets.layouts import DatasetSpec, Layout, Listing
from fpp_sweep.core.datasets.opening import (
    custom_datasets,
    folder_dataset,
    list_split,
    open_dataset,
    read_custom,
    require_known,
    require_possible_split,
    require_root,
)

__all__ = [
    "DATASETS",
    "GROUPS",
    "SPLITS",
    "BadImageError",
    "Dataset",
    "DatasetSpec",
    "FileImages",
    "Group",
    "ImageSource",
    "Layout",
    "Listing",
    "custom_datasets",
    "expand",
    "fair_order",
    "folder_dataset",
    "imagenet_classes",
    "list_split",
    "open_dataset",
    "read_custom",
    "require_known",
    "require_possible_split",
    "require_root",
    "resolve",
]
