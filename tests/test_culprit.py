"""Who is to blame: pure cases of what ranks were last seen doing, how they ended, and what they wrote."""

import faulthandler
import sys
import traceback

import pytest

from keras_par.agent.states import Exit, State
from keras_par.agent.traceback_text import readable_stacks, summarize
from keras_par.launch import verdict
from keras_par.launch.culprit import find_hang, first_failure

AFTER = 10.0


def state(rank: int, quiet: float = 20.0, **what) -> State:
    """A rank in its 7th step, silent for a while."""
    usual = {"call": "fit", "phase": "callback", "step": 7, "has_joined": True, "phase_seconds": quiet}
    return State(rank=rank, quiet=quiet, **(usual | what))


def waiting(rank: int, name: str = "kp.gradients.0.0", **what) -> State:
    return state(rank, **({"phase": "reduce", "collectives": (name,)} | what))


def end(rank: int, status: int = 1, time: float = 100.0, **what) -> Exit:
    return Exit(rank=rank, host="node", status=status, time=time, **what)


HANGS = {
    "one rank in its data": ([waiting(0), state(1, phase="data")], (1,), 0, "rank 1 is in its input pipeline"),
    "two of four": (
        [waiting(0), state(1), waiting(2), state(3)],
        (1, 3),
        0,
        "ranks 0 and 2 wait in 'kp.gradients.0.0'",
    ),
    "a rank that goes on alone": ([waiting(0), state(1, quiet=0.5, phase_seconds=20)], (1,), 0, "and makes progress"),
    "a stopped rank": ([waiting(0), waiting(1, is_stopped=True)], (1,), 0, "is stopped by a signal"),
    "a stopped rank, all others at work": ([state(0, quiet=0.1), state(1, is_stopped=True)], (1,), 0, "kill -CONT"),
    "one collective skipped": (
        [waiting(0, "a"), waiting(1, "a"), waiting(2, "b", step=8)],
        (2,),
        0,
        "from step 7 of epoch 1 on: ranks 0 and 1 wait in 'a' at step 7 of epoch 1, but rank 2 waits in 'b' at step 8",
    ),
    "one that has come to a part of what others wait in": (
        [waiting(0, collectives=("a", "b")), waiting(1, "b"), waiting(2, collectives=("a", "b"))],
        (1,),
        0,
        "ranks 0 and 2 wait in 'a' and 'b'",
    ),
    "all at the same moment, seen one after the other": (
        [state(0, quiet=10.3), state(1, quiet=9.8), state(2, quiet=9.6)],
        (0, 1, 2),
        None,
        "rank 2 is in a callback",
    ),
    "two ranks part": ([waiting(0, "a"), waiting(1, "b")], (0, 1), None, "rank 0 waits in 'a'"),
    "two ranks part, one in no step": (
        [waiting(0, "a"), waiting(1, "b", call=None, step=0)],
        (0, 1),
        None,
        "run different code: rank 0 waits in 'a' at step 7 of epoch 1, but rank 1 waits in 'b' outside of fit",
    ),
    "two ranks part, one in an evaluation": (
        [waiting(0, "a"), waiting(1, "b", call="evaluate", step=2)],
        (0, 1),
        None,
        "the ranks run different code: rank 0 waits in 'a' at step 7",
    ),
    "two ranks part, one before its first step": (
        [waiting(0, "a"), waiting(1, "b", step=0)],
        (0, 1),
        None,
        "the ranks run different code from the begin of epoch 1 on",
    ),
    "a rank that closed its connections": (
        [waiting(0), waiting(1, has_closed=True)],
        (1,),
        0,
        "rank 1 has closed the files and connections that it did not open, such as the launcher's, at step 7",
    ),
    "output that nobody takes": (
        [waiting(0), state(1, is_writing=True)],
        (1,),
        0,
        "rank 1 waits for 20 s until its output is taken at step 7 of epoch 1",
    ),
    "all in the same": ([waiting(0), waiting(1)], (0, 1), None, "the connection between them"),
    "before init": (
        [waiting(0, "kp.init", call=None), State(1, quiet=20.0)],
        (1,),
        0,
        "rank 1 has not come to kp.init(); rank 0 waits in 'kp.init'",
    ),
    "all stuck in steps": ([state(0), state(1)], (0, 1), None, "rank 0 is in a callback"),
    "one stuck, the others not yet waiting": ([state(0, quiet=1.0), state(1)], (1,), 0, "rank 1 is in a callback"),
    "no Python runs": ([waiting(0), state(1, python_seconds=15.0)], (1,), 0, "no Python thread of it has run for 15 s"),
    "outside of fit": ([waiting(0), state(1, call=None, phase="script")], (1,), 0, "rank 1 is outside of fit for 20 s"),
}


@pytest.mark.parametrize(("states", "culprits", "witness", "words"), HANGS.values(), ids=HANGS)
def test_hangs(states, culprits, witness, words):
    hang = find_hang(states, {}, AFTER)
    assert hang is not None
    assert (hang.culprits, hang.witness) == (culprits, witness)
    assert words in hang.text


@pytest.mark.parametrize(("quiet", "hangs"), [(20.0, False), (121.0, True)])
def test_ranks_that_connect_have_time_to_compile(quiet, hangs):
    states = [waiting(rank, "kp.init", call=None, quiet=quiet) for rank in range(2)]
    assert (find_hang(states, {}, AFTER) is not None) == hangs


def test_ranks_that_wait_for_one_that_has_ended():
    hang = find_hang([waiting(0)], {1: end(1, status=0)}, AFTER)
    assert hang is not None and hang.culprits == (1,)
    assert "rank 1 has ended (status 0), but rank 0 still waits" in hang.text


@pytest.mark.parametrize(
    "states",
    [
        [waiting(0, quiet=9.0), state(1, quiet=9.0)],
        [waiting(0, quiet=0.5), waiting(1, quiet=0.5)],
        [state(0, call=None, phase="script"), state(1, call=None, phase="script")],
        [State(0, quiet=20.0), State(1, quiet=20.0)],
        [],
    ],
    ids=["not long enough", "at work", "scripts take their time", "all are starting", "all have ended"],
)
def test_no_hang(states):
    assert find_hang(states, {}, AFTER) is None


FIRST = {
    "the earliest": ([end(0, time=5.0), end(1, time=4.0)], 1),
    "the error counts, not the end": ([end(0, time=5.0, failed=2.0), end(1, time=4.0)], 0),
    "no consequence": ([end(0, time=1.0, is_consequence=True), end(1, time=4.0)], 1),
    "nobody the launcher ended": ([end(0, -15, 1.0, was_told=True), end(1, -9, 4.0)], 1),
    "one that was slow to end": (
        [end(0, time=9.0, failed=3.0, is_consequence=True), end(1, -15, 9.5, failed=2.0, was_told=True)],
        1,
    ),
    "one that has become another program": (
        [end(0, -15, 9.0, was_told=True, is_replaced=True), end(1, time=3.0, is_consequence=True)],
        0,
    ),
    "nobody who succeeded": ([end(0, status=0, time=1.0), end(1, time=4.0)], 1),
    "one alone before all alike": ([end(0, time=1.0, on_all_ranks=True), end(1, time=4.0)], 1),
    "the lowest of equals": ([end(1, time=4.0, on_all_ranks=True), end(0, time=4.0, on_all_ranks=True)], 0),
    "of all alike, one that ended by itself": (
        [
            end(0, -15, 9.0, failed=2.0, was_told=True, error="ValueError: x"),
            end(1, time=4.0, failed=3.0, error="ValueError: x"),
        ],
        1,
    ),
    "a consequence if there is nothing else": ([end(0, time=1.0, is_consequence=True), end(1, status=0)], 0),
}


@pytest.mark.parametrize(("exits", "rank"), FIRST.values(), ids=FIRST)
def test_the_first_failure(exits, rank):
    first = first_failure(exits)
    assert first is not None and first.rank == rank


def test_no_failure():
    assert first_failure([end(0, status=0), end(1, status=0)]) is None


def test_errors_on_all_ranks_are_no_ones_fault():
    assert verdict.title(end(0, on_all_ranks=True), {}) == "all ranks failed alike"


def test_the_same_error_on_all_ranks_is_one_verdict():
    """Also where the launcher had to end a rank, which it says instead of its own signal."""
    ended = {
        0: end(0, -15, 12.0, failed=2.0, was_told=True, error="TroubleError: x"),
        1: end(1, time=4.0, failed=3.0, error="my.module.TroubleError: x"),
    }
    assert verdict.title(ended[1], ended) == "all ranks failed alike"
    text = verdict.lines(ended[1], ended)
    assert text == ["Rank 1 on host node exited with status 1.", "Error: my.module.TroubleError: x"]
    alone = {0: ended[0], 1: end(1, time=4.0, is_consequence=True, error="RuntimeError: rank 0 failed")}
    first = first_failure(list(alone.values()))
    assert first is ended[0] and first.shell_status == 1
    assert verdict.title(first, alone) == "rank 0 failed first"
    assert "failed, and was ended by the launcher because it did not end by itself" in verdict.lines(first, alone)[0]
    assert not any("SIGTERM" in line for line in verdict.lines(first, alone))


def test_a_rank_that_has_become_another_program_is_told_as_such():
    ended = {0: end(0, -15, was_told=True, is_replaced=True), 1: end(1, is_consequence=True)}
    assert "Rank 0 on host node has become another program (exec), and was ended by the launcher." in verdict.lines(
        ended[0], ended
    )
    assert ended[0].shell_status == 1


def test_a_rank_that_left_early_is_the_reason_of_the_others_failure():
    ended = {0: end(0, time=5.0, is_consequence=True), 1: end(1, status=0, time=4.0)}
    assert verdict.title(ended[0], ended) == "rank 1 ended before the others"
    assert verdict.lines(ended[0], ended)[0].startswith("Rank 1 ended with status 0 while others went on")
    assert verdict.title(ended[0], ended | {1: end(1, status=0, time=5.5)}) == "rank 1 ended before the others"


def test_the_verdict_says_what_became_of_the_others():
    ended = {0: end(0, -15, was_told=True), 1: end(1, -9, rss=2**30), 2: end(2, 3)}
    text = "\n".join(verdict.lines(ended[1], ended))
    assert "Rank 1 on host node was ended by signal 9 (SIGKILL)." in text
    assert "it used 1.0 GiB" in text
    assert "Then rank 0 was ended by the launcher, rank 2 exited with status 3." in text


def test_an_abort_is_told_in_its_own_words():
    said = "F0000 00:00:1.2 8 env.cc:74] Check failed: ret == 0 (11 vs. 0)Thread creation via pthread_create() failed."
    text = verdict.lines(end(1, -6, last_words=said), {})
    assert f"Last words: {said}" in text and any("No more threads can start" in line for line in text)
    assert not any("Last words" in line for line in verdict.lines(end(1, -11, last_words="step 5"), {}))


def test_who_starts_processes_without_a_guard_is_told_what_to_write():
    error = "RuntimeError: An attempt has been made to start a new process before ... finished its bootstrapping phase."
    assert any("if __name__ ==" in line for line in verdict.lines(end(1, error=error), {}))


@pytest.mark.parametrize(
    ("where", "place", "words"),
    [
        ("after step 3 of epoch 1", "outside of fit", "stopped after step 3 of epoch 1 on all ranks, by SIGINT"),
        ("", "at step 7 of epoch 1", "stopped by SIGINT when a rank was at step 7 of epoch 1;"),
        ("", "outside of fit", "stopped by SIGINT when a rank was outside of fit;"),
    ],
)
def test_where_a_job_was_that_its_user_ended(where, place, words):
    assert verdict.interrupted(2, where, place, "", False).startswith(words)


def raise_through_a_library():
    """Fails in a library, with a cause of its own."""
    import json

    try:
        json.loads("{")
    except ValueError as error:
        raise RuntimeError("in the\nmiddle") from error


def test_the_traceback_that_python_prints_is_understood(capsys):
    try:
        raise_through_a_library()
    except RuntimeError:
        traceback.print_exc()
    error, line = summarize(["noise", *capsys.readouterr().err.splitlines(), "noise at exit"])
    assert error == "RuntimeError: in the"
    assert line is not None and line.startswith(f"{__file__}:")
    assert line.endswith('in raise_through_a_library: raise RuntimeError("in the\\nmiddle") from error')


def test_a_syntax_error_is_understood():
    lines = ['  File "/home/me/train.py", line 3', "    def f(:", "          ^", "SyntaxError: invalid syntax"]
    assert summarize(lines) == ("SyntaxError: invalid syntax", "/home/me/train.py:3: def f(:")


def test_no_traceback():
    assert summarize(["something", "else"]) == (None, None)


def test_marks_below_code_that_have_lost_their_indent_are_no_exception():
    frames = [
        '  File "/home/me/train.py", line 3, in read',
        "    next(rows)",
        "^^^^~~^ ",
        '  File "/home/me/b.py", line 9',
    ]
    lines = ["Traceback (most recent call last):", *frames, "    raise ValueError(1)", "ValueError: 1"]
    assert summarize(lines) == ("ValueError: 1", "/home/me/b.py:9: raise ValueError(1)")


def test_stacks_are_shown_without_the_insides_of_libraries(tmp_path):
    with (tmp_path / "stacks").open("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        shown = readable_stacks(file.read())
    lines = shown.splitlines()
    assert "test_culprit.py" in lines[0] and "in test_stacks_are_shown" in lines[0]
    assert any("more in libraries" in line for line in lines)
    assert sys.prefix not in shown
