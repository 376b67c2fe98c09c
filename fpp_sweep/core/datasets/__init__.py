"""Labelled images by name: `open_dataset("dtd", "test", root)`; `table.py` shows every dataset."""

from fpp_sweep.core.datasets.base import SPLITS, BadImageError, Dataset, Group, ImageSource
from fpp_sweep.core.datasets.custom import read_custom
from fpp_sweep.core.datasets.layout import Layout, Listing, Spec
from fpp_sweep.core.datasets.names import expand, resolve
from fpp_sweep.core.datasets.opening import list_split, open_dataset, require_known, require_root
from fpp_sweep.core.datasets.table import DATASETS, GROUPS

__all__ = [
    "DATASETS",
    "GROUPS",
    "SPLITS",
    "BadImageError",
    "Dataset",
    "Group",
    "ImageSource",
    "Layout",
    "Listing",
    "Spec",
    "expand",
    "list_split",
    "open_dataset",
    "read_custom",
    "require_known",
    "require_root",
    "resolve",
]
