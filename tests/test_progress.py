"""Progress on a terminal and in a log."""

import io
import re

from fpp_sweep.spec.progress import Bar, Screen


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def run_bar(stream, steps, seconds, **options):
    clock = Clock()
    with Bar("features", steps, stream=stream, clock=clock, **options) as bar:
        for _ in range(steps):
            clock.now += seconds
            bar.advance(1)
    return stream.getvalue()


def successive_screens(text):
    """Return the successive contents of the terminal."""
    return [state for state in re.split(r"\r\033\[2K(?:\033\[1A\033\[2K)*", text) if state]


def test_a_log_gets_a_line_every_ten_seconds_and_one_at_the_end():
    lines = run_bar(io.StringIO(), 50, 0.5).splitlines()
    assert lines == [
        "features: 20/50 images, 2.0/s, 15 s left",
        "features: 40/50 images, 2.0/s, 5 s left",
        "features: 50/50 images in 25 s, 2.0/s",
    ]


def test_a_terminal_gets_one_line_that_is_refreshed_ten_times_a_second_at_most():
    shown = successive_screens(run_bar(Terminal(), 1000, 0.01))
    assert all(state.count("\n") == 1 and state.endswith("\n") for state in shown)
    assert 90 <= len(shown) <= 101
    assert shown[-1] == "features: 1000/1000 images in 10 s, 100.0/s\n"


def test_quick_work_leaves_no_output():
    assert run_bar(io.StringIO(), 10, 0.5) == ""
    assert run_bar(Terminal(), 10, 0.05).endswith("\r\033[2K\033[1A\033[2K")


def test_a_hidden_bar_is_silent(capfd):
    for stream in (io.StringIO(), Terminal()):
        with Bar("features", 2, stream=stream, shown=False) as bar:
            bar.advance(1)
            bar.note("a line")
        assert stream.getvalue() == ""
    assert capfd.readouterr() == ("", "")


def test_cached_items_count_as_done_but_not_for_the_rate():
    clock = Clock()
    bar = Bar("features", 100, stream=io.StringIO(), clock=clock)
    bar.add_cached(80)
    clock.now = 5.0
    bar.advance(10)
    assert (bar.done, bar.rate, bar.remaining) == (90, 2.0, 5.0)


def test_a_note_is_on_a_separate_line_above_the_bar():
    stream = Terminal()
    clock = Clock()
    bar = Bar("features", 10, stream=stream, clock=clock)
    clock.now = 1.0
    bar.advance(1)
    bar.note("a shard is damaged")
    bar.note("bad\033[2J")
    assert successive_screens(stream.getvalue())[-2:] == [
        "a shard is damaged\nfeatures: 1/10 images, 1.0/s, 9 s left\n",
        "bad\\x1b[2J\nfeatures: 1/10 images, 1.0/s, 9 s left\n",
    ]


def test_only_terminals_that_allow_it_get_colours(monkeypatch):
    from rich.text import Text

    def draw_line(stream):
        Screen(stream).draw([Text("a line", "red")])
        return stream.getvalue()

    monkeypatch.setenv("FORCE_COLOR", "1")  # as some CI does
    assert draw_line(io.StringIO()) == "a line\n"
    assert "\033[31ma line" in draw_line(Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert draw_line(Terminal()) == "a line\n"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert draw_line(Terminal()) == "a line\n"
