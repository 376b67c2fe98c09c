"""`doctor --data-root`: the table of datasets, --verify, and the exit status."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from fpp_sweep import doctor
from fpp_sweep.spec.errors import InputError
from tests.kit.datasets import JPEG, build_aircraft, build_coop, build_folders, write_image


@pytest.fixture(autouse=True)
def healthy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the checks of the machine, so that only datasets decide the exit status."""
    monkeypatch.setattr("fpp_sweep.sweep.doctor.findings_by_machine", lambda *target: {})


def exit_status(*words: object) -> object:
    """Return the exit status of a run that accepts its input."""
    try:
        doctor.main([str(word) for word in words])
    except SystemExit as end:
        return end.code
    return 0


def rows(text: str) -> dict[str, list[str]]:
    """Return the cells of the table by the name of the dataset."""
    lines = (line for line in text.splitlines() if line and not line.startswith(" "))
    return {line.split()[0]: line.split()[1:] for line in lines}


def problems(text: str) -> list[str]:
    """Return the problems below the table, each with its datasets."""
    return [" ".join(problem.split()) for problem in re.split(r"\n    (?! )", text)[1:]]


def test_the_table_shows_found_datasets_and_the_expected_paths_of_missing_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_coop(tmp_path, "pets")
    build_coop(tmp_path, "dtd", parts={"test": 1, "train": 2})
    shutil.rmtree(tmp_path / "dtd/images/zebra")
    build_coop(tmp_path, "eurosat")
    (tmp_path / "eurosat/2750/zebra/zebra_4.jpg").unlink()
    build_aircraft(tmp_path)
    assert exit_status("--data-root", tmp_path, "--datasets", "fine_grained") == 1
    text = capsys.readouterr().out
    table = rows(text)
    assert table["dataset"] == ["found", "classes", "train", "val", "test"]
    assert table["pets"] == ["yes", "3", "9", "3", "6"]
    assert table["aircraft"] == ["yes", "4", "12", "4", "8"]
    assert table["food101"] == ["no", "-", "-", "-", "-"]
    assert table["eurosat"] == ["yes", "3", "-", "3", "6"]
    assert table["dtd"] == ["no", "-", "-", "-", "-"]
    found = "\n".join(problems(text))
    for problem in (
        "food101: split file food-101/split_zhou_Food101.json is not there; add it, or correct its path",
        "pets: test: 6 images, but 3669 were published",
        "eurosat: train: 1 of 9 images are not in eurosat/2750, such as zebra/zebra_4.jpg",
        "dtd: val: dtd/split_zhou_DescribableTextures.json has no 'val' split",
        "dtd: test: 1 of 3 images are not in dtd/images",
    ):
        assert problem in found


def test_a_problem_of_several_datasets_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("--datasets", "pets", "dtd", "scenes") == 1
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if "needs --data-root" in line]
    assert line.strip().startswith("pets, dtd: needs --data-root")


def test_embedded_datasets_are_always_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("--datasets", "scenes,letters") == 0
    table = rows(capsys.readouterr().out)
    assert table["scenes"][:2] == ["yes", "12"]
    assert table["letters"][:2] == ["yes", "26"]


def test_missing_datasets_fail_only_if_they_were_requested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_coop(tmp_path, "pets")
    assert exit_status("--data-root", tmp_path) == 0
    assert exit_status("--data-root", tmp_path, "--datasets", "pets", "scenes") == 0
    assert exit_status("--data-root", tmp_path, "--datasets", "pets", "dtd") == 1
    capsys.readouterr()


def test_the_users_own_datasets_are_requested_by_their_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("zoo: {layout: folders, images: photos}")
    assert exit_status("--dataset-file", file) == 1
    text = " ".join(capsys.readouterr().out.split())  # joins wrapped lines: the breaks depend on the path's length
    assert f"image folder {tmp_path}/photos is not there" in text
    build_folders(tmp_path / "photos", ["cat", "dog"], count=10)
    assert exit_status("--dataset-file", file, "--datasets", "zoo") == 0
    assert rows(capsys.readouterr().out)["zoo"] == ["yes", "2", "10", "4", "6"]


def test_files_without_an_image_suffix_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_folders(tmp_path / "photos", ["cat", "dog"], count=10)
    for name in ("cat/1.heic", "dog/2.heic", "dog/notes", ".cache"):
        write_image(tmp_path / "photos" / name)
    assert exit_status("--datasets", f"zoo={tmp_path}/photos") == 0
    (text,) = problems(capsys.readouterr().out.rpartition("\n")[0].rpartition("\n")[0])
    assert text == "zoo: ignored files: 2 .heic, 1 without suffix; convert the images among them to PNG or JPEG"


def test_the_datasets_of_a_space_are_requested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("params: {fpp.gamma1: [1, 2]}\nwork: {datasets: [dtd, scenes]}\n")
    build_coop(tmp_path, "pets")
    assert exit_status("--space", space, "--data-root", tmp_path) == 1
    assert list(rows(capsys.readouterr().out)) == ["data", "dataset", "dtd", "scenes", "verdict:"]
    assert exit_status("--space", space, "--data-root", tmp_path, "--datasets", "pets") == 0


def test_verify_names_every_damaged_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_coop(tmp_path, "pets")
    command = ("--data-root", tmp_path, "--datasets", "pets", "scenes", "--verify")
    assert exit_status(*command) == 0
    assert "18 images opened, 0 of them cannot be read" in capsys.readouterr().out
    images = tmp_path / "oxford_pets/images"
    write_image(images / "zebra_4.jpg", b"")
    write_image(images / "acorn_18.jpg", (images / "acorn_18.jpg").read_bytes()[:300])
    assert exit_status(*command) == 1
    text = capsys.readouterr().out
    assert f"{images}/zebra_4.jpg: the file is empty" in text
    assert f"{images}/acorn_18.jpg: " in text
    assert "18 images opened, 2 of them cannot be read" in text


def test_verify_finds_copies_in_two_splits_of_own_datasets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files in folders of splits never have one name, so only their content tells a copy."""
    image = JPEG
    for split in ("train", "val", "test"):
        for name in ("cat", "dog"):
            image += b"."  # a decoder ignores what follows an image
            write_image(tmp_path / f"photos/{split}/{name}/{len(image)}.jpg", image)
    command = ("--datasets", f"zoo={tmp_path}/photos", "--verify")
    assert exit_status(*command) == 0
    write_image(tmp_path / "photos/val/dog/a.jpg", image)
    capsys.readouterr()
    assert exit_status(*command) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "equal image" in line]
    assert line == (
        f"zoo: val and test hold 1 equal image, such as val/dog/a.jpg and test/dog/{len(image)}.jpg; take these "
        "images out of one of the two splits"
    )
    (tmp_path / "photos/val/dog/a.jpg").write_bytes(b"")  # damaged files are equal, and no copies of each other
    (tmp_path / f"photos/test/dog/{len(image)}.jpg").write_bytes(b"")
    assert exit_status(*command) == 1
    assert "equal image" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--data", "--verfy"], "--help lists the options"),
        (["--device", "cpu", "--verify"], "--device: checks the device alone; run doctor again"),
        (["--device", "cpu", "--address", "auto"], "--device: checks the device alone; run doctor again"),
        (["--limit", "3"], "--model, --limit and --set: need --space"),
    ],
)
def test_wrong_input_is_refused_in_one_line(words: list[str], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        doctor.main(words)
