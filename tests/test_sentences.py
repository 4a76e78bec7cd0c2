"""The sentence of an error within the messages that Keras, AutoGraph and TensorFlow wrap around it."""

import pytest

from keras_par.agent.traceback_text import last_words, summarize
from keras_par.base.sentence import error_of, sentence_of
from keras_par.base.user_code import is_of_user, last_line

CALLING = (
    "Exception encountered when calling M.call().\n\n\x1b[1mtwo heads, one key\x1b[0m\n\nArguments received by it:"
)
USER_CODE = """in user code:

    File "/env/lib/python3.11/site-packages/keras/src/backend/tensorflow/trainer.py", line 133, in one_step  *
        outputs = self.run(one_step, args=(data,))
    File "/home/me/train.py", line 33, in train_step  *
        raise TypeError("no such step")

    TypeError: no such step
"""
GRAPH = """Graph execution error:

Detected at node Sub defined at (most recent call last):
<stack traces unavailable>
Detected at node Div defined at (most recent call last):
  File "/home/me/train.py", line 50, in <module>

"""
WRAPPED = {
    "plain": ("RuntimeError", "it broke\nand more", "RuntimeError: it broke"),
    "a layer's": ("ValueError", CALLING, "ValueError: two heads, one key"),
    "AutoGraph's": ("TypeError", USER_CODE, "TypeError: no such step"),
    "a layer's within AutoGraph's": (
        "ValueError",
        USER_CODE.replace("TypeError: no such step", "ValueError: " + CALLING.replace("\n", "\n    ")),
        "ValueError: two heads, one key",
    ),
    "a graph's": (
        "UnknownError",
        GRAPH + "Horovod has been shut down.\n\t [[{{node x}}]]",
        "Horovod has been shut down.",
    ),
    "one of a graph's": (
        "InvalidArgumentError",
        GRAPH + "2 root error(s) found.\n  (0) INVALID_ARGUMENT:  it is NaN\n\t [[{{node x}}]]",
        "INVALID_ARGUMENT:  it is NaN",
    ),
    "an iterator's": (
        "InvalidArgumentError",
        "{{function_node __wrapped__IteratorGetNext_output_types_2_device_/job:x/CPU:0}} OSError: no more\nTraceback",
        "InvalidArgumentError: OSError: no more",
    ),
    "written as paragraphs": (
        "RuntimeError",
        "\n    Two lines\n    of one.\n\n    More.",
        "RuntimeError: Two lines of one.",
    ),
    "nothing within": ("ValueError", "in user code:", "ValueError: in user code:"),
    "nothing at all": ("ValueError", "", "ValueError"),
    "endless": ("ValueError", "x" * 10**6, "ValueError: " + "x" * 1000),
}


@pytest.mark.parametrize(("kind", "message", "line"), WRAPPED.values(), ids=WRAPPED)
def test_the_sentence_within_a_message_is_found(kind, message, line):
    expected = line if line.startswith(kind) else f"{kind}: {line}"
    assert error_of(kind, message) == expected
    stack = f'Traceback (most recent call last):\n  File "/home/me/a.py", line 1, in f\n    f()\nsome.{kind}: {message}'
    error, _ = summarize(stack.splitlines())
    assert error is not None and error.removeprefix("some.") == expected


def test_an_error_without_a_message_does_not_get_what_follows_it():
    stack = ["Traceback (most recent call last):", '  File "/home/me/a.py", line 1, in f', "    assert x"]
    assert summarize([*stack, "AssertionError", "noise", "more noise"])[0] == "AssertionError"


def test_messages_within_themselves_end():
    assert sentence_of("in user code:\n\n" * 1000).endswith("in user code:")


def test_the_last_line_of_the_users_code_is_in_what_autograph_says():
    stack = ["Traceback (most recent call last):", '  File "/home/me/train.py", line 50, in <module>', "    m.fit(x)"]
    _, line = summarize([*stack, *f"TypeError: {USER_CODE}".splitlines(), "noise"])
    assert line == '/home/me/train.py:33 in train_step: raise TypeError("no such step")'


def test_files_of_cython_are_not_the_users():
    stack = [
        "Traceback (most recent call last):",
        '  File "/home/me/train.py", line 5, in <module>',
        "    h5py.File(name)",
        '  File "h5py/_objects.pyx", line 54, in h5py._objects.with_phil.wrapper',
        '  File "h5py/h5f.pyx", line 122, in h5py.h5f.open',
        "FileNotFoundError: [Errno 2] Unable to synchronously open file",
    ]
    assert summarize(stack)[1] == "/home/me/train.py:5 in <module>: h5py.File(name)"


@pytest.mark.parametrize(
    "path",
    [
        "h5py/h5f.pyx",
        "/build/numpy/random/mtrand.pyx",
        "a.pxd",
        "<frozen importlib>",
        pytest.__file__,
        summarize.__code__.co_filename,
    ],
)
def test_what_is_not_the_users(path):
    assert not is_of_user(path) and is_of_user(__file__)


def test_the_last_line_of_an_error_that_prints_no_traceback():
    try:
        pytest.importorskip("json").loads("{")
    except ValueError as error:
        line = last_line(error.__traceback__)
    assert line.startswith(f"{__file__}:") and line.endswith('pytest.importorskip("json").loads("{")')
    assert last_line(None) == ""


def test_multiprocessings_many_lines_are_one_sentence():
    """What a process says that would start others while its own script is still being imported."""
    import multiprocessing.spawn

    with pytest.raises(RuntimeError) as caught:
        multiprocessing.process.current_process()._inheriting = True
        try:
            multiprocessing.spawn._check_not_importing_main()
        finally:
            del multiprocessing.process.current_process()._inheriting
    said = "RuntimeError: An attempt has been made to start a new process before the current process has finished its"
    assert str(caught.value).count("\n") > 10
    assert error_of("RuntimeError", str(caught.value)) == f"{said} bootstrapping phase."


FATAL = "F0000 00:00:17957.1 819 env.cc:74] Check failed: ret == 0 Thread tf_x creation via pthread_create() failed."
ABORTED = {
    "TensorFlow's": ([FATAL, "*** Check failure stack trace: ***", "    @ 0x7f tsl::x()"], FATAL),
    "the C++ library's": (
        ["terminate called after throwing an instance of 'std::system_error'", "  what():  Resource unavailable", ""],
        "what():  Resource unavailable",
    ),
    "assert's": (["x.c:3: main: Assertion `a == b' failed.", "bye"], "x.c:3: main: Assertion `a == b' failed."),
    "none": (["hello", "  bye  ", ""], "bye"),
    "chatter": (["hello", "I0000 00:00:1.2 3 cudart_stub.cc:31] Could not find cuda drivers."], "hello"),
    "nothing": ([], None),
}


@pytest.mark.parametrize(("lines", "said"), ABORTED.values(), ids=ABORTED)
def test_what_compiled_code_says_before_it_aborts(lines, said):
    assert last_words(lines) == said
