"""Tables mark trials with settings of a released program by how the settings were chosen, and explain the marks."""

from fpp_sweep.records.texts import released_mark, released_notes
from tests.kit.records import trial

PAPERS, OWN = ("dtd", "pets"), ("shapes", "digits")


def record(method, datasets=PAPERS, number=0, **settings):
    return trial(number, params={"method": method, **settings}, datasets=datasets)


def test_a_mark_depends_on_how_the_settings_were_chosen():
    assert released_mark(record("tpt")) == ""
    assert released_mark(record("zero")) == ""  # its released value is the same for all datasets
    assert released_mark(record("tda")) == "†"
    assert released_mark(record("soc")) == "§"
    assert released_mark(record("tda", OWN)) == "§"  # nothing is released for these datasets
    assert released_mark(record("atpt", OWN)) == "†"  # one value for all datasets
    assert released_mark(record("zero", **{"adapt.templates": "released"})) == "†"
    assert released_mark(record("zero", OWN, **{"adapt.templates": "released"})) == "§"
    assert released_mark(record("zero", **{"adapt.templates": "simple"})) == ""


def test_settings_of_the_user_have_no_mark():
    own = {"adapt.cache_alpha": 3.0, "adapt.cache_beta": 4.0}
    assert released_mark(record("tda", **own)) == ""
    assert released_mark(record("tps", **{"adapt.shift_lr": 0.1})) == ""
    assert released_mark(record("tps")) == "†"


def test_notes_name_each_setting_once():
    records = [record("tda"), record("tda", number=1), record("soc", number=2), record("tpt", number=3)]
    assert released_notes(records) == [
        "† as released; how they were chosen is not said: tda adapt.cache_alpha, tda adapt.cache_beta",
        "§ ours, not the authors': soc adapt.penalty_weight, soc adapt.huber_delta",
    ]
    assert released_notes([record("tpt")]) == []
