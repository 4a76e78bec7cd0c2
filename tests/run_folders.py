"""Folders such as a run writes them, made up for the tests of the report."""

import json
import math
import random
from pathlib import Path

from keras_par.base.heartbeat_page import bucket

STARTED = 1_763_650_000.0  # 2025-11-20 14:46:40 UTC
STACK = 'Thread 0x7f (newest call first):\n  File "train.py", line 31 in load\n  File "train.py", line 58 in <module>\n'
SECONDS = ("script", "data", "forward-backward", "reduce", "callback")


def write_lines(path: Path, lines: list[dict]) -> None:
    """Writes `lines` as JSON, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def describe(folder: Path, num_ranks: int, **others) -> None:
    """Writes run.json."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "version": 1,
        "command": ["keras-par", "run", "-np", str(num_ranks), "train.py", "--batch-size", "64"],
        "engine": "mpi",
        "num_ranks": num_ranks,
        "hosts": {str(rank): f"node{rank // 2:02}" for rank in range(num_ranks)},
        "started": STARTED,
        "keras_par": "0.2.0",
        "python": "3.11.7",
    }
    (folder / "run.json").write_text(json.dumps(content | others))


def event(time: float, kind: str, text: str, attempt: int = 0, rank: int | None = None, **others) -> dict:
    """A line of events.jsonl, `time` seconds after the start."""
    return {"time": STARTED + time, "attempt": attempt, "event": kind, "rank": rank, "text": text, **others}


def sample(time: float, steps: int, seconds: tuple, attempt: int = 0, **others) -> dict:
    """A line of progress.jsonl, `time` seconds after the start; `seconds` in the order of SECONDS."""
    line = {"time": STARTED + time, "attempt": attempt, "phase": "reduce", "call": "fit", "collective": None}
    line |= {
        "epoch": 0,
        "step": steps,
        "steps": steps,
        "loss": None,
        "seconds": dict(zip(SECONDS, seconds, strict=True)),
    }
    return line | {"step_times": {}, "rss": 0, "cpu": 0.0} | others


def by_hand(folder: Path) -> None:
    """Two ranks, two attempts, small round numbers that can be added up in the head."""
    describe(folder, 2)
    mebi = 2**20
    write_lines(
        folder / "rank.0" / "progress.jsonl",
        [
            sample(10, 0, (10, 0, 0, 0, 0), rss=100 * mebi),
            sample(20, 100, (10, 1, 6, 2, 1), rss=300 * mebi, loss=0.9, step_times={"40": 50, "44": 50}),
            sample(40, 0, (5, 0, 0, 0, 0), attempt=1, rss=100 * mebi),
            sample(80, 300, (5, 9, 24, 8, 9), attempt=1, rss=200 * mebi, loss=0.5, step_times={"44": 300}),
        ],
    )
    write_lines(
        folder / "rank.1" / "progress.jsonl",
        [
            sample(10, 0, (10, 0, 0, 0, 0), rss=100 * mebi),
            sample(20, 100, (10, 2, 7, 0, 1), rss=1536 * mebi, loss=0.8, step_times={"48": 100}),
            sample(80, 300, (5, 18, 32, 0, 20), attempt=1, rss=200 * mebi, loss=0.7, step_times={"48": 300}),
        ],
    )
    for rank in range(2):
        epochs = [
            {"time": STARTED + 20, "attempt": 0, "epoch": 0, "steps": 100, "logs": {"loss": 0.8, "val_loss": 0.9}},
            {"time": STARTED + 60, "attempt": 1, "epoch": 0, "steps": 150, "logs": {"loss": 0.6, "val_loss": 0.7}},
            {"time": STARTED + 80, "attempt": 1, "epoch": 1, "steps": 300, "logs": {"loss": 0.25, "val_loss": 0.375}},
        ]
        write_lines(folder / f"rank.{rank}" / "epochs.jsonl", epochs)
    message = "Rank 1 on node00 failed: ValueError: <script>document.title = 'gone'</script> & more."
    write_lines(
        folder / "events.jsonl",
        [
            event(0, "start", "2 ranks start."),
            event(21, "crash", message, rank=1, stacks={"1": "<b>bold?</b>\n" + STACK, "0": STACK}),
            event(22, "restart", "All ranks start again (restart 1 of 3).", attempt=1),
            event(90, "end", "The run finished.", attempt=1, status=0),
        ],
    )


HOSTILE = '</title></svg><script>document.title = "gone"</script><img src="x" onerror="document.title = 1">'


def hostile(folder: Path) -> None:
    """Two ranks whose names, messages and values are such as to break a careless page, and lines that are none."""
    describe(folder, 2, command=["python", HOSTILE + ".py", "$x^2$"], hosts={"0": HOSTILE, "1": "b"}, engine="<b>mpi")
    logs = {"loss": math.nan, "$\\frac{a$ " + HOSTILE: 1e300, "#000001 Verlust äöü 損失": 3.0, "val_loss": 0.5}
    for rank in range(2):
        lines = [sample(10 * second, 10 * second, (1, second, second, second, 0), loss=1e40) for second in range(9)]
        write_lines(folder / f"rank.{rank}" / "progress.jsonl", lines)
        epoch = {"time": STARTED, "attempt": 0, "epoch": 0, "steps": 10, "logs": logs}
        write_lines(folder / f"rank.{rank}" / "epochs.jsonl", [epoch, epoch | {"steps": 20}])
    with (folder / "rank.1" / "progress.jsonl").open("ab") as file:
        file.write(b"\n".join(NOT_PROGRESS) + b"\n" + b'{"time": 17')
    text = f"{HOSTILE} \x1b[31mred\x1b[0m \x00 \ud800 {{{{ 7 * 7 }}}} -->"
    write_lines(folder / "events.jsonl", [event(5, HOSTILE, text), event(9, "crash", text, stacks={HOSTILE: text})])


NOT_PROGRESS = [
    *(b"garbage", b"[]", b"null", b"17", b'"text"', b"{}", b"\xff\xfe\x00", b"[" * 100_000, b'{"a":' * 100_000),
    *(b'{"time": "noon"}', b'{"time": NaN}', b'{"time": 1e999}', b'{"time": 1e14}', b'{"time": true}', b'{"time": -1}'),
    *(b'{"time": 1, "steps": -1}', b'{"time": 1, "steps": 1.5}', b'{"time": 1, "steps": %s}' % (b"9" * 5000)),
    *(b'{"time": 1, "seconds": 3}', b'{"time": 1, "seconds": {"data": "x"}}', b'{"time": 1, "seconds": {"data": -1}}'),
    *(b'{"time": 1, "step_times": {"96": 1}}', b'{"time": 1, "step_times": {"x": 1}}', b'{"time": 1, "loss": "low"}'),
]


def crash_at_once(folder: Path) -> None:
    """A run that failed before any rank noted anything."""
    describe(folder, 2)
    text = "Rank 0 on node00 failed: ModuleNotFoundError: No module named 'pandsa' (train.py, line 3)."
    end = event(2, "end", "The run failed.", status=1)
    write_lines(folder / "events.jsonl", [event(0, "start", "2 ranks start."), event(1.5, "crash", text, rank=0), end])


def long_run(folder: Path, num_ranks: int = 4, seconds: int = 1800, slow: int = 2, seed: int = 1) -> None:
    """A run with a hang and a restart, one line a second; rank `slow` takes a third longer than the others."""
    describe(folder, num_ranks)
    first = seconds * 2 // 5
    for rank in range(num_ranks):
        lines = list(one_attempt(rank, rank == slow, 0, 0, first, seed))
        lines += one_attempt(rank, rank == slow, 1, first + 30, seconds - first - 30, seed + 1)
        write_lines(folder / f"rank.{rank}" / "progress.jsonl", lines)
        write_lines(folder / f"rank.{rank}" / "epochs.jsonl", [epoch_line(line) for line in lines if is_last(line)])
    hang = f"Rank {slow} on node01 has made no step for 120 seconds; it is in its input pipeline (phase data)."
    write_lines(
        folder / "events.jsonl",
        [
            event(0, "start", f"{num_ranks} ranks start over MPI."),
            event(seconds * 0.2, "warning", f"Rank {slow} is 25 % slower than the median of the others."),
            event(
                first - 120,
                "hang",
                hang,
                rank=slow,
                stacks={str(slow): STACK * 4, "0": STACK.replace("load", "reduce")},
            ),
            event(first + 2, "restart", "All ranks start again from CKP-3_500 (restart 1 of 3).", attempt=1),
            event(first + 9, "resume", "The run goes on at epoch 3, step 500.", attempt=1),
            event(seconds, "end", "The run finished.", attempt=1, status=0),
        ],
    )


def many(folder: Path, num_ranks: int, lines: int = 60, slow: int = 3, failed: int = 7, every: float = 10) -> None:
    """A run of thousands of ranks, eight a host, of which each notes few lines; one is slow, and another fails."""
    hosts = {str(rank): f"node{rank // 8:04}" for rank in range(num_ranks)}
    describe(folder, num_ranks, hosts=hosts)
    chance = random.Random(num_ranks)
    for rank in range(num_ranks):
        work = chance.gauss(5, 0.1) + (2 if rank == slow else 0)
        noted = []
        for line in range(lines):
            times = {str(40 + number): 20 * line * (4 - number) for number in range(4)}
            seconds = (every, 0.3 * line, work * line, (every - work - 0.6) * line, 0.3 * line)
            loss = 2 / (1 + 0.1 * line) + chance.gauss(0, 0.02)
            others = {"loss": loss, "step_times": times, "rss": (2 + 0.001 * line) * 2**30 // 1 + rank * 2**14}
            noted.append(sample(every * (line + 1), 200 * line, seconds, **others))
        write_lines(folder / f"rank.{rank}" / "progress.jsonl", noted)
    text = f"Rank {failed} on host node0000 exited with status 1, at step 9 of epoch 1. Error: ValueError: this."
    rest = f"Then ranks 0 to {failed - 1} and {failed + 1} to {num_ranks - 1} exited with status 1."
    end = event(every * lines + 2, "end", "the job ended with status 1", status=1)
    events = [
        event(0, "start", f"{num_ranks} rank(s) started"),
        event(every * lines, "crash", f"{text} {rest}", rank=failed),
    ]
    write_lines(folder / "events.jsonl", [*events, end])


STEPS_A_SECOND, STEPS_AN_EPOCH = 20, 2400


def one_attempt(rank: int, is_slow: bool, attempt: int, begin: float, seconds: int, seed: int):
    """The lines of one attempt, in which the first twelve seconds go into starting."""
    chance = random.Random(1000 * seed + rank)
    spent, histogram = [0.0] * 5, {}
    for second in range(seconds):
        steps = max(second - 11, 0) * STEPS_A_SECOND
        if second < 12:
            spent[0] += 1
        else:
            work = (0.62 if is_slow else 0.5) + 0.06 * math.sin(second / 90)
            parts = (0, (0.16 if is_slow else 0.06), work, 0, 0.05)
            spent = [before + part for before, part in zip(spent, parts, strict=True)]
            spent[3] += 1 - sum(parts)
            for _ in range(STEPS_A_SECOND):
                time = 0.05 * chance.lognormvariate(0.0, 0.18 if is_slow else 0.12) + (
                    0.3 if chance.random() < 0.002 else 0
                )
                histogram[str(bucket(time))] = histogram.get(str(bucket(time)), 0) + 1
        within = steps % STEPS_AN_EPOCH or STEPS_AN_EPOCH
        total = steps + attempt * 9000
        loss = 0.15 + 2.1 * math.exp(-total / 6000) + chance.gauss(0, 0.5) / math.sqrt(within + 4) if steps else None
        others = {"loss": loss, "epoch": total // STEPS_AN_EPOCH, "step_times": dict(histogram), "cpu": second * 1.7}
        memory = int(
            (0.9 + 0.5 * (1 - math.exp(-second / 60)) + 0.03 * rank + (0.0004 * second if is_slow else 0)) * 2**30
        )
        yield sample(begin + second, steps, tuple(spent), attempt, rss=memory, **others)


def is_last(line: dict) -> bool:
    """True for the last line of an epoch."""
    return bool(line["steps"]) and line["steps"] % STEPS_AN_EPOCH == 0


def epoch_line(line: dict) -> dict:
    """The line of epochs.jsonl for the end of an epoch."""
    loss = 0.15 + 2.1 * math.exp(-(line["steps"] + line["attempt"] * 9000) / 6000)
    logs = {"loss": loss, "accuracy": 1 - loss / 2.6, "learning_rate": 1e-3 * 0.9 ** line["epoch"]}
    logs |= {"val_loss": loss * 1.1 + 0.05, "val_accuracy": 0.97 - loss / 2.6}
    return {
        "time": line["time"],
        "attempt": line["attempt"],
        "epoch": line["epoch"],
        "steps": line["steps"],
        "logs": logs,
    }
