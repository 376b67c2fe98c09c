"""Progress on a terminal and in a log."""

import io

from fpp_sweep.progress import Bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def run(stream, steps, seconds, **options):
    clock = Clock()
    with Bar("features", steps, stream=stream, clock=clock, **options) as bar:
        for _ in range(steps):
            clock.now += seconds
            bar.advance(1)
    return stream.getvalue()


def test_a_log_gets_a_line_every_ten_seconds_and_a_last_one():
    lines = run(io.StringIO(), 50, 0.5).splitlines()
    assert lines == [
        "features: 20/50 images, 2.0/s, 15 s left",
        "features: 40/50 images, 2.0/s, 5 s left",
        "features: 50/50 images in 25 s, 2.0/s",
    ]


def test_a_terminal_gets_one_line_that_is_refreshed_ten_times_a_second_at_most():
    text = run(Terminal(), 1000, 0.01)
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert 90 <= text.count("images") <= 101


def test_a_terminal_line_is_no_longer_than_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    states = run(Terminal(), 100, 0.05).rstrip("\n").split("\r\033[K")
    assert len(states) > 10
    assert max(len(state) for state in states) == 19


def test_quick_work_leaves_nothing_behind():
    assert run(io.StringIO(), 10, 0.5) == ""
    assert run(Terminal(), 10, 0.05).endswith("\r\033[K")


def test_a_hidden_bar_is_silent():
    for stream in (io.StringIO(), Terminal()):
        with Bar("features", 2, stream=stream, shown=False) as bar:
            bar.advance(1)
            bar.note("a line")
        assert stream.getvalue() == ""


def test_what_was_found_is_done_but_says_nothing_about_the_rate():
    clock = Clock()
    bar = Bar("features", 100, stream=io.StringIO(), clock=clock)
    bar.found(80)
    clock.now = 5.0
    bar.advance(10)
    assert (bar.done, bar.rate, bar.remaining) == (90, 2.0, 5.0)


def test_without_work_nothing_is_known_and_nothing_shown():
    bar = Bar("features", 100, stream=io.StringIO())
    bar.found(100)
    assert (bar.rate, bar.remaining) == (0.0, None)
    bar.close()


def test_a_note_stands_on_a_line_of_its_own():
    stream = Terminal()
    clock = Clock()
    bar = Bar("features", 10, stream=stream, clock=clock)
    clock.now = 1.0
    bar.advance(1)
    bar.note("a shard is damaged")
    assert stream.getvalue().endswith("\r\033[Ka shard is damaged\n")
