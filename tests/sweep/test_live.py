"""A running sweep on the terminal: its header, its display, and in a log."""

import fcntl
import io
import os
import pty
import re
import struct
import termios
from dataclasses import replace

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.state import SweepProgress
from fpp_sweep.search.searcher import TrialChange
from fpp_sweep.sweep.live import Display, Status, heading, split_line, trial_line
from tests.kit.records import ACCURACY, ECE, SECONDS, failed, split_result, sweep_info, trial


@pytest.mark.parametrize(
    ("search", "line"),
    [
        ({"trials": 8}, "then      up to 6 finalists with 3 seeds each, the best of them on test"),
        (
            {"wall_clock": 60},
            "then      up to 6 finalists with 3 seeds each, the best of them on test; beyond the budget of time",
        ),
        (
            {"trials": 8, "finalists": {"count": 1, "seeds": 3}},
            "then      up to 1 finalist with 3 seeds each, the best of them on test",
        ),
        ({"wall_clock": 60, "finalists": {"seeds": 1}}, "then      the front on test"),
    ],
)
def test_the_header_names_the_work_after_the_budget(tmp_path, search, line):
    space = {"search": {"finalists": {"count": 6, "seeds": 3}, **search}}
    assert line in heading(SweepFolder(tmp_path), space, sweep_info().objectives, "val", width=120)


@pytest.mark.parametrize(
    ("work", "line"),
    [
        ({"datasets": ["dtd", "pets"]}, "work      tiny on dtd, pets"),
        ({"dataset_file": "mine.yaml"}, "work      tiny on mine.yaml"),
    ],
)
def test_the_header_names_the_model_and_the_datasets_or_their_file(tmp_path, work, line):
    space = {"work": {"model": "tiny", **work}}
    assert line in heading(SweepFolder(tmp_path), space, sweep_info().objectives, "val", width=120)


GOALS = (ACCURACY, ECE)
LINES = (
    "13/40 trials, 1 failed, 2 running",
    "41.3 images/s on 2 workers, 32 % done, about 3:13 left",
    "front of 2, best accuracy 71.00, ece 4.00",
    "a machine or GPU gets no more tasks",
)
STATUS = Status("search", SweepProgress(done=13, total=40, seconds_left=193.0), LINES)
LINE = f"search: {'; '.join(LINES)}"


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Terminal:
    """A pseudo-terminal, and a small emulator that returns the rows that a person would see."""

    def __init__(self, columns=80, encoding="utf-8"):
        self.master, slave = pty.openpty()
        self.resize(columns)
        self.stream = os.fdopen(slave, "w", encoding=encoding)
        self.raw = b""

    def resize(self, columns):
        self.columns = columns
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))

    def text(self):
        os.set_blocking(self.master, False)
        try:
            while piece := os.read(self.master, 65536):
                self.raw += piece
        except BlockingIOError:
            pass
        return self.raw.decode(self.stream.encoding)

    def screen(self):
        """Return the visible rows."""
        rows, row = [""], 0
        for token in re.findall(r"\033\[\d*[AK]|\033\[[\d;]*m|\r|\n|[^\033\r\n]+", self.text()):
            if token == "\n":
                row += 1
                rows[row:] = rows[row:] or [""]
            elif token == "\033[1A":
                assert row > 0, "the cursor was moved above the top of the screen"
                row -= 1
            elif token == "\033[2K":
                rows[row] = ""
            elif not token.startswith(("\033", "\r")):  # escape codes of colours take no columns
                rows[row] += token
        return [shown for shown in rows if shown]


@pytest.fixture
def terminal():
    terminals = []

    def make(*arguments, **named):
        terminals.append(Terminal(*arguments, **named))
        return terminals[-1]

    yield make
    for opened in terminals:
        os.close(opened.master)
        opened.stream.close()


def test_a_terminal_has_one_block_that_is_redrawn(terminal):
    screen = terminal()
    clock = Clock()
    display = Display(screen.stream, objectives=GOALS, clock=clock)
    for finished in range(14):
        clock.now += 1
        display.update(replace(STATUS, lines=[f"{finished}/40 trials, 1 failed, 2 running", *LINES[1:]]))
    first, *others = screen.screen()
    assert first == "search    ━━━━━━╸━━━━━━━━━━━━━ 13/40 trials, 1 failed, 2 running"
    assert [line.strip() for line in others] == list(LINES[1:])


def test_events_are_printed_above_the_block(terminal):
    screen = terminal()
    display = Display(screen.stream, objectives=GOALS)
    display.event("before")
    display.update(STATUS)
    display.event("trial-0001  accuracy 70.00")
    display.event("trial-0002  failed: no memory")
    display.close()
    rows = screen.screen()
    assert rows[:3] == ["before", "trial-0001  accuracy 70.00", "trial-0002  failed: no memory"]
    assert rows[3].startswith("search")
    assert len(rows) == 3 + len(LINES)


def test_a_block_fits_a_narrow_terminal(terminal):
    screen = terminal(60)
    Display(screen.stream, objectives=GOALS).update(STATUS)
    wide = screen.screen()
    assert max(map(len, wide)) <= 59
    assert "━" in wide[0]
    narrow = terminal(30)
    Display(narrow.stream, objectives=GOALS).update(STATUS)
    rows = narrow.screen()
    assert len(rows) == len(LINES)
    assert max(map(len, rows)) <= 29
    assert "━" not in rows[0]
    assert rows[-1].endswith("…")


def test_a_log_gets_every_event_and_a_status_every_half_minute():
    stream = io.StringIO()
    clock = Clock()
    display = Display(stream, objectives=GOALS, clock=clock)
    for second in range(62):
        clock.now = float(second)
        display.update(STATUS)
        if second == 40:
            display.event("trial-0001  accuracy 70.00")
    display.update(replace(STATUS, phase="test"))
    assert stream.getvalue().splitlines() == [
        LINE,
        LINE,
        "trial-0001  accuracy 70.00",
        LINE,
        LINE.replace("search:", "test:"),
    ]


def test_texts_cannot_control_the_terminal(terminal):
    screen = terminal()
    display = Display(screen.stream, objectives=GOALS)
    display.update(replace(STATUS, lines=[*LINES, "\033[2Jgone\r\nmore"]))
    display.event("bad\033]0;title\a\nline")
    display.update(replace(STATUS, phase="\033[1mtest"))
    assert set(re.findall(r"\033\[[\d;]*\w|\033.", screen.text())) <= {
        "\033[2K",
        "\033[1A",
        "\033[1m",
        "\033[0m",
        "\033[32m",
        "\033[90m",
    }
    assert screen.screen()[0] == r"bad\x1b]0;title\x07\nline"


def test_a_trials_line_has_values_time_and_whether_it_joins_the_front():
    assert trial_line(trial(1, 70.123, 4.5), GOALS, on_front=True) == (
        "trial-0001  accuracy 70.12, ece 4.50  50 s  joins the front"
    )
    assert trial_line(trial(2, constraints={"accuracy": 0.2}), GOALS).endswith("breaks accuracy")
    assert trial_line(failed(3, "ValueError:\nbad"), GOALS) == r"trial-0003  failed: ValueError:\nbad"


def test_a_line_about_another_split_has_the_objectives_or_the_reason():
    tested = trial(1, 70, 5, test=True)
    assert split_line(tested, "test", GOALS) == "trial-0001  on test: accuracy 69.30, ece 5.00"
    final = replace(tested, results={"final": split_result(70, 5)})
    assert split_line(final, "final", GOALS) == "trial-0001  in the final stage: accuracy 70.00, ece 5.00"
    partial = replace(tested, results={"test": replace(split_result(70, 5), average={"accuracy": 70.0})})
    assert split_line(partial, "test", GOALS) == "trial-0001  on test: accuracy 70.00"
    assert split_line(tested, "test", (ACCURACY, SECONDS)).endswith("accuracy 69.30, seconds 45.0")
    assert split_line(failed(2, "on test: no memory"), "test", GOALS) == "trial-0002  on test: no memory"


def test_a_trial_that_ends_has_a_line_that_says_whether_it_joins_the_front():
    stream = io.StringIO()
    display = Display(stream, objectives=GOALS)
    member = trial(1)
    for record in (member, trial(2)):
        change = TrialChange(
            record=record, split="val", on_search_split=True, has_ended=True, records=[], joins_front=record is member
        )
        display.on_change(change)
    first, second = stream.getvalue().splitlines()
    assert first.startswith("trial-0001")
    assert first.endswith("joins the front")
    assert second.startswith("trial-0002")
    assert "front" not in second
