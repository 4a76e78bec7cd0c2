"""What a terminal shows of a job: one bar that is refreshed in place, and a closing line."""

import os
import pty
import re

from keras_par.agent.terminal_filter import Lines, settled, without_chatter
from keras_par.launch.console import Bars, clipped
from tests.launcher import Job, program, run_all


def test_a_bar_is_refreshed_in_place_on_a_terminal():
    ours, theirs = pty.openpty()
    job = Job("-np", 2, program("plain"), "bar", 0, stdout=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # as a terminal ends
            break
    assert job.wait().status == 0
    os.close(ours)
    lines = [screen(line) for line in shown.decode().replace("\r\n", "\n").split("\n")]
    assert sorted(filter(None, lines)) == ["[0] 5/5 loss 0", "[1] 5/5 loss 1"]
    pictures = shown.decode().split("\r\x1b[K")
    drawn = {match[1] for picture in pictures if (match := re.match(r"\[0\] \x1b\[1m(\d)/5", picture))}
    assert len(drawn) >= 3, pictures


def screen(line: str) -> str:
    """What is left to be seen of a line that was erased and written again."""
    return re.sub(r"\x1b\[\d*m", "", line.split("\r\x1b[K")[-1]).rstrip()


def test_a_bar_is_one_plain_line_elsewhere_and_chatter_is_kept_for_the_log(tmp_path):
    options = {"calm": (), "verbose": ("-v",)}
    tails = {name: (*more, program("plain"), "bar", 0) for name, more in options.items()}
    jobs = run_all({name: ("-np", 2, "--log-dir", tmp_path / name, "--tee", *tail) for name, tail in tails.items()})
    for name, job in jobs.items():
        assert sorted(job.stdout.splitlines()) == ["[0] 5/5 loss 0", "[1] 5/5 loss 1"], name
        assert job.stderr.count("an error of TensorFlow's") == 2, name
        assert job.stderr.count("oneDNN") == (2 if options[name] else 0), name
        last = job.stderr.splitlines()[-1]
        assert re.fullmatch(rf"keras-par: 2 ranks finished in .* s; logs: {tmp_path}/{name}", last)
        raw = (tmp_path / name / "rank.1/stdout").read_text()
        assert raw.count("\b") == 5 * 9 + 3 and "\x1b[1m5/5" in raw, name
        assert "oneDNN" in (tmp_path / name / "rank.1/stderr").read_text(), name


def test_a_line_that_is_overwritten_does_not_grow():
    lines = Lines()
    for number in range(1000):
        lines.add(f"\b\b\b\r{number}/1000 ".encode())
        assert settled(lines.begun()) == f"{number}/1000"
    assert len(lines.begun()) < 20
    lines.add(b"\n")
    assert settled(lines.whole()) == "999/1000"


def test_what_a_line_comes_to():
    assert settled("one\rtwo\r\n") == "two"
    assert settled("\r\b\x1b[0m") == ""
    assert (
        without_chatter("a\nI1122 02:03:04.5 1 x.cc:1] b\n2026-11-22 02:03:04.5: I tensorflow/c\nIdea\n") == "a\nIdea\n"
    )
    assert without_chatter("2026-11-22 02:03:04.5: W tensorflow/c\n") == "2026-11-22 02:03:04.5: W tensorflow/c\n"
    no_gpu = "E0000 00:00:1795969065.278940     310 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: "
    assert without_chatter(f"{no_gpu}Failed call to cuInit: UNKNOWN ERROR (303)\n") == ""  # no driver is installed
    broken = f"{no_gpu}CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected (100)\n"
    assert without_chatter(broken) == broken
    assert clipped("\x1b[1mab\x1b[0mcd", 3) == "\x1b[1mab\x1b[0mc"


class Terminal:
    """A stream that says it is a terminal, and keeps what is written."""

    closed = False

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def fileno(self):
        raise OSError

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_there_is_one_bar_below_all_other_output():
    bars, terminal = Bars(), Terminal()
    for rank in (1, 0, 2):
        bars.show(rank, terminal, f"bar {rank}", is_done=False)
    bars.beside(lambda: terminal.write("a line\n"))
    assert screen(terminal.text.split("\n")[-1]) == "bar 0"
    assert screen(terminal.text.split("\n")[0]) == "a line"
    bars.show(0, terminal, "done 0", is_done=True)
    assert [screen(line) for line in terminal.text.split("\n")] == ["a line", "done 0", "bar 1"]
    bars.leave()
    assert terminal.text.endswith("\n")
