"""The page of shared memory in which a rank notes where it is, so that others can read it even when the rank hangs."""

import ctypes
import math
import signal
from pathlib import Path

VARIABLE = "KERAS_PAR_WATCH"  # "page,stacks,notes": the file descriptors that a watched process inherits

STACK_SIGNAL = signal.SIGRTMIN + 7  # asks a rank for its stacks; scripts and schedulers use SIGUSR1 themselves

# What Python does, or waits in; inside a step, GRAPH_PHASES tell more.
PHASES = ("starting", "script", "data", "step", "callback", "collective")
GRAPH_PHASES = ("data", "forward-backward", "reduce")
CALLS = (None, "fit", "evaluate", "predict", "train_on_batch", "test_on_batch")

SHORTEST_STEP = 1e-5  # seconds: where the first bucket of step times begins
BUCKETS_PER_OCTAVE, NUM_BUCKETS = 4, 96
MAGIC = 0x6B7031
NEVER = -1
AT_ONCE = 2**62  # instead of a step to stop before: a signal ends each rank where it is
BY_USER, FOR_ANOTHER_WORLD = 1, 2  # why all ranks stop after the same step


class Page(ctypes.Structure):
    """What one rank and its watcher tell each other; times are `time.monotonic()` of their host, in seconds."""

    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),  # of the process that writes, 0 before it has begun to
        # Written by the watcher.
        ("pause", ctypes.c_uint32),  # not 0, but why: wait before the next step until stop_before is known
        ("stop_before", ctypes.c_int64),  # the number of a call of a step function that must not begin, or NEVER
        # Written by the rank.
        ("call", ctypes.c_uint32),  # the innermost, in CALLS
        ("in_fit", ctypes.c_uint32),  # 1 during a call of fit, which comes to a step where it can stop
        ("phase", ctypes.c_uint32),  # in PHASES
        ("graph_phase", ctypes.c_uint32),  # in GRAPH_PHASES, as it was at the last sample
        ("phase_since", ctypes.c_double),
        ("sampled", ctypes.c_double),  # when the step was last looked into
        ("marks", ctypes.c_uint64),  # grows with everything the rank's Python does
        ("graph_marks", ctypes.c_uint64),  # grows with everything its steps do
        ("epoch", ctypes.c_int64),
        ("step", ctypes.c_int64),  # of the epoch, or of an evaluation, from 1; 0 before the first
        ("steps", ctypes.c_int64),  # of training, begun since the process started
        ("executions", ctypes.c_int64),  # calls of step functions since then, which all ranks make together
        ("graph_collectives", ctypes.c_char * 640),  # those that the step was in at the last sample
        ("collective", ctypes.c_char * 160),  # the one that Python waits in, or empty
        ("loss", ctypes.c_double),  # NaN for none
        ("seconds", ctypes.c_double * len(PHASES)),  # spent in each phase that is over
        ("image", ctypes.c_char * 64),  # of its process, when it began to write
        ("failed", ctypes.c_double),  # when it told an error that not all ranks have, or that ended its script, or 0
        ("failed_at", ctypes.c_int64),  # executions by then
        ("ended", ctypes.c_double),  # when its script ended, or 0
        ("threads", ctypes.c_char * 256),  # the names of those that Python waits for since then
        ("samples", ctypes.c_uint64 * len(GRAPH_PHASES)),
        ("step_times", ctypes.c_uint64 * NUM_BUCKETS),  # of training
    )


def image_of(pid: int) -> bytes:
    """Where a process's program, stack and arguments lie, which `exec` changes; nothing if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return b""
    return b"" if fields[0] in (b"Z", b"X") else b" ".join((fields[23], fields[25], fields[45]))


def bucket(seconds: float) -> int:
    """The bucket of a histogram of step times; each covers a quarter of an octave."""
    if seconds <= SHORTEST_STEP:
        return 0
    return min(int(BUCKETS_PER_OCTAVE * math.log2(seconds / SHORTEST_STEP)), NUM_BUCKETS - 1)


def clipped(text: str, size: int) -> bytes:
    """`text` in UTF-8, in at most `size` - 1 bytes, without half a character at its end."""
    return text.encode(errors="replace")[: size - 1].decode(errors="ignore").encode()
