"""The YAML reader, whose values know their lines."""

import json

import pytest
import yaml

from fpp_sweep.space.yamlfile import config_text, of_plain, parse, read
from fpp_sweep.spec.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("1e-3", 0.001), ("1E5", 1e5), (".5", 0.5), ("5.", 5.0), ("-.inf", float("-inf")), ("007", 7), ("+3", 3)],
        *[
            ("on", "on"),
            ("no", "no"),
            ("True", True),
            ("1:30", "1:30"),
            ("1_000", "1_000"),
            ("2026-11-20", "2026-11-20"),
        ],
        *[("x0.1", "x0.1"), ("'1'", "1"), ("~", None), ("0x10", "0x10"), ("e5", "e5")],
    ],
)
def test_scalars_are_read_by_the_rules_of_yaml_1_2(text, value):
    assert repr(parse(text, "x.yaml").value) == repr(value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "a: 1\nb: !!python/object/apply:os.system [ls]",
            "x.yaml:2: not valid YAML: tag !!python/object/apply:os.system",
        ),
        ("a: !!int '3'", "x.yaml:1: not valid YAML: tag !!int is not allowed here"),
        ("a: &a [1]\nb: *a", "x.yaml:2: not valid YAML: alias *a is not allowed here; write the value out"),
        ("a: 1\nb: 2\na: 3", "x.yaml:3: key 'a' comes twice, first in line 1"),
        ("a:\n  b: 1\n  b: 1", "x.yaml:3: key 'a.b' comes twice, first in line 2"),
        ("a: [1,", "x.yaml:1: not valid YAML: "),
        ("a: 1\n\tb: 2", "x.yaml:2: not valid YAML: "),
        ("a: 1\nb: \x01", "x.yaml:2: not valid YAML: special characters are not allowed"),
        ("a: 1\n---\nb: 2", "x.yaml:2: not valid YAML: "),
        ("a: 1\n? [b]\n: 2", "x.yaml:2: a key must be a word, not a sequence"),
        ("[" * 1500, "x.yaml: not valid YAML: nested too deeply"),
    ],
)
def test_wrong_yaml_is_refused_with_its_line(text, line):
    with pytest.raises(InputError) as error:
        parse(text, "x.yaml")
    assert str(error.value).startswith(line)


def test_a_value_has_the_line_of_its_key_and_an_item_has_its_own_line():
    document = parse("a:\n  b.c: [1,\n    2]\n  d:\n    e: 3\n", "x.yaml")
    lines = {"a": 1, "a.b.c": 2, "a.b.c.1": 3, "a.d.e": 5, "a.d.f": 4, "g": 1}
    for path, line in lines.items():
        assert str(document.error(path, "is wrong")) == f"x.yaml:{line}: {path}: is wrong"


def test_numbers_below_a_verbatim_key_stay_text():
    document = parse("a: {printed: {b: [8.50, x]}}\nprinted: 1", "x.yaml", verbatim="printed")
    assert document.value == {"a": {"printed": {"b": ["8.50", "x"]}}, "printed": "1"}


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path):
    (tmp_path / "bad.yaml").write_bytes(b"a: 1\nb: \xff")
    for name, line in (("none.yaml", "does not exist"), (".", "is a folder"), ("bad.yaml", ":2: not UTF-8 text")):
        with pytest.raises(InputError, match=line):
            read(tmp_path / name, "search space")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "a\0b", "search space")
    (tmp_path / "huge.yaml").write_bytes(b"# " + bytes(3 * 2**20))
    with pytest.raises(
        InputError, match=r"^search space [^ ]*huge\.yaml cannot be read \(larger than 1 MiB\); give another file"
    ):
        read(tmp_path / "huge.yaml", "search space")


def test_errors_in_plain_values_name_what_they_come_from():
    values = {"a": [1, {"b": None}]}
    document = of_plain(values, "sweep.json")
    document.value["a"].append(2)
    assert values == {"a": [1, {"b": None}]}
    assert str(document.error("a.1.b", "is wrong")) == "sweep.json: a.1.b: is wrong"


@pytest.mark.parametrize(
    "text", ["a photo of a", "é: ☃ # '\"", "\x1b[2J\nconfig: owned", "\ud800", "😀", "1e3", ".5e1", "on"], ids=ascii
)
def test_a_config_with_any_text_is_read_back_unchanged(text):
    config = {"prompt": text, "adapt.lr": 1e-5, "fpp.gamma2": None}
    assert yaml.safe_load(config_text(config))["config"] == config
    assert parse(config_text(config), "config.yaml").value == {"config": config}


@pytest.mark.parametrize("value", ["a 😀", {"é😀": ["\U00010000", "\ud800", "\u2028"]}, [1e-3, True, None]], ids=ascii)
def test_json_is_yaml(value):
    assert parse(json.dumps(value), "x.json").value == value
