"""The YAML reader, whose values know their lines."""

import json

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fpp_sweep.space.yamlfile import config_text, dump, of_plain, parse, read
from fpp_sweep.spec.errors import InputError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
NUMBER_LIKE = st.from_regex(r"\A[-+.0-9eExXoO_:]{1,6}\Z") | st.sampled_from(
    ["on", "yes", "null", "~", "", "True", ".inf"]
)
VALUES = st.recursive(
    SCALARS | NUMBER_LIKE, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(VALUES)
@example({"\x85": "a\u2028b"})  # two line breaks of Unicode
@settings(deadline=None)
def test_dumped_values_are_read_back_with_equal_values_and_types(value):
    again = parse(dump(value), "x.yaml").plain()
    assert again == value
    assert repr(again) == repr(value)  # compares types too: 1, 1.0 and True are equal


@given(st.text() | st.text("[]{}:,-&*!|>'\"#%@` \n\ta1"))
@settings(deadline=None)
def test_any_text_is_read_or_refused_with_a_line(text):
    line = "x.yaml: no error"
    try:
        parse(text, "x.yaml")
    except InputError as error:
        line = str(error)
    assert line.startswith("x.yaml")
    assert "\n" not in line


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
    assert repr(parse(text, "x.yaml").plain()) == repr(value)


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
        ("a: " + "9" * 5000, "x.yaml:1: a: "),
    ],
)
def test_wrong_yaml_is_refused_with_its_line(text, line):
    with pytest.raises(InputError) as error:
        parse(text, "x.yaml")
    assert str(error.value).startswith(line)


def test_a_value_has_the_line_of_its_key_and_an_item_has_its_own_line():
    tree = parse("a:\n  b.c: [1,\n    2]\n  d:\n    e: 3\n", "x.yaml")
    inner = tree.value["a"].value
    assert (inner["b.c"].where, inner["b.c"].path) == ("x.yaml:2", "a.b.c")
    assert (inner["b.c"].value[1].where, inner["b.c"].value[1].path) == ("x.yaml:3", "a.b.c.1")
    assert str(inner["d"].value["e"].error("is wrong")) == "x.yaml:5: a.d.e: is wrong"


def test_a_byte_order_mark_is_ignored(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbfa: 1")
    assert read(tmp_path / "x.yaml", "file").plain() == {"a": 1}


def test_a_whole_number_of_too_many_digits_is_refused():
    """Python converts none of more than 4,300 digits, since this takes long."""
    with pytest.raises(InputError, match=r"^x\.yaml:1: a\.b: is a number of 5000 digits; write a shorter one$"):
        parse(f"a: {{b: {'9' * 5000}}}", "x.yaml")


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


def test_plain_values_get_paths_too():
    node = of_plain({"a": [1, {"b": (2, None)}]}, "sweep.json")
    assert node.plain() == {"a": [1, {"b": [2, None]}]}
    assert node.value["a"].value[1].value["b"].path == "a.1.b"


@pytest.mark.parametrize(
    "text", ["a photo of a", "é: ☃ # '\"", "\x1b[2J\nconfig: owned", "\ud800", "😀", "1e3", ".5e1", "on"], ids=ascii
)
def test_a_config_with_any_text_is_read_back_unchanged(text):
    config = {"prompt": text, "adapt.lr": 1e-5, "fpp.gamma2": None}
    assert yaml.safe_load(config_text(config))["config"] == config
    assert parse(config_text(config), "config.yaml").plain() == {"config": config}


@given(st.floats(), st.sampled_from(["adapt.lr", "on", "1", "a: b", "x" * 200]))
def test_numbers_of_a_config_are_written_as_pyyaml_writes_them(number, key):
    config = {key: number}
    assert config_text(config) == yaml.safe_dump({"config": config})


@pytest.mark.parametrize("value", ["a 😀", {"é😀": ["\U00010000", "\ud800", "\u2028"]}, [1e-3, True, None]], ids=ascii)
def test_json_is_yaml(value):
    assert parse(json.dumps(value), "x.json").plain() == value


def test_keys_are_written_in_their_order():
    for prompt in ("a photo of a", "\ud800"):  # libyaml cannot write half of a character
        keys = list(yaml.safe_load(config_text({"prompt": prompt, "method": "tpt", "adapt.lr": 1.0}))["config"])
        assert keys == ["prompt", "method", "adapt.lr"]
    assert dump({"b": 1, "a": {"d": 2, "c": 3}}) == "b: 1\na:\n  d: 2\n  c: 3\n"
