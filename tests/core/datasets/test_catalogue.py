"""The catalogue of datasets: its rows, groups and names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fpp_sweep.core.datasets import DATASETS, GROUPS, expand
from fpp_sweep.spec.errors import InputError
from tests.kit.datasets import COOP


def test_every_dataset_of_the_paper_is_in_the_catalogue() -> None:
    assert set(GROUPS["fine_grained"]) == {"aircraft", *COOP}
    assert GROUPS["imagenet"] == ("imagenet",)
    assert [*GROUPS["natural_shifts"]] == expand("I-A, I-V2, I-R, I-S")


def test_only_imagenet_and_embedded_datasets_are_without_augmix() -> None:
    assert {name for name, spec in DATASETS.items() if not spec.augmix} == {"imagenet", *GROUPS["tiny_all"]}


def test_the_papers_abbreviations_are_accepted() -> None:
    paper = "Air,Calt,Car,DTD,SAT,FLW,Food,Pets,SUN,UCF"
    assert expand(paper) == [*GROUPS["fine_grained"]]


def test_the_official_ids_are_accepted_in_any_case() -> None:
    official = "Aircraft/Caltech101/Cars/DTD/eurosat/Flower102/Food101/Pets/SUN397/UCF101"
    assert expand(official.split("/")) == [*GROUPS["fine_grained"]]
    assert expand(official.upper().split("/")) == [*GROUPS["fine_grained"]]
    assert expand(["I", "A", "V", "R", "K"]) == ["imagenet", *GROUPS["natural_shifts"]]
    assert expand("stanford-cars,OxfordPets,ImageNetV2,ImageNetSketch") == [
        "cars", "pets", "imagenet_v2", "imagenet_sketch"
    ]  # fmt: skip


def test_no_two_datasets_share_a_name() -> None:
    names: list[str] = []
    for name, spec in DATASETS.items():
        names += {alias.lower().replace("-", "").replace("_", "") for alias in (name, *spec.aliases)}
    assert len(set(names)) == len(names)


def test_expanding_keeps_the_order_and_drops_duplicates() -> None:
    assert expand(["pets,dtd", "Pets", "digits", "all"])[:3] == ["pets", "dtd", "digits"]
    assert sorted(expand("all")) == sorted(DATASETS)
    assert expand("dtd,") == ["dtd"]


def test_an_unknown_name_gets_the_nearest_known_name() -> None:
    with pytest.raises(InputError, match="unknown dataset 'eurosatt', did you mean 'eurosat'"):
        expand("eurosatt")
    with pytest.raises(InputError, match="did you mean 'natural_shifts'"):
        expand("natural_shift")
    with pytest.raises(InputError, match="did you mean 'photos'"):
        expand("foto,photo", ["photos", "foto"])


@pytest.mark.parametrize("nothing", ["", " , ", []])
def test_an_empty_list_of_names_is_refused(nothing: str | list[str]) -> None:
    with pytest.raises(InputError, match="no dataset is named"):
        expand(nothing)


def test_the_package_of_datasets_imports_no_large_library() -> None:
    code = (
        "import sys, fpp_sweep.core.datasets as d; d.DATASETS['imagenet_a'].layout.classes();"
        "print(*({'torch', 'torchvision', 'timm', 'open_clip', 'sklearn'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert loaded.stdout.split() == [], loaded.stderr
    assert loaded.returncode == 0, loaded.stderr
