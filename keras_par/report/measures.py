"""The numbers of the page, computed from a run without drawing anything; attempts are added up throughout."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from keras_par.base.heartbeat_page import BUCKETS_PER_OCTAVE, SHORTEST_STEP
from keras_par.report import fields
from keras_par.report.progress import PHASES, Progress
from keras_par.report.run_folder import Run

OWN = ("data", "forward-backward", "callback")  # what a rank does itself; in reduce it waits for the others
SAMPLES_A_SECOND = 10  # how often the launcher looks what a step is doing
STRETCHES, SHORTEST_STRETCH = 100, 5.0  # over which communication is shown: how many of a run, and seconds


def attempts(run: Run) -> list[int]:
    """The attempts that left anything, in order."""
    found = {event.attempt for event in run.events} | {epoch.attempt for epoch in run.epochs}
    return sorted(found.union(*(progress.last for progress in run.progress.values())))


def steps_of(run: Run) -> Counter[int]:
    """For each attempt its steps of training, by the rank that came furthest."""
    steps: Counter[int] = Counter()
    for epoch in run.epochs:
        steps[epoch.attempt] = max(steps[epoch.attempt], epoch.steps)
    for progress in run.progress.values():
        for attempt, sample in progress.last.items():
            steps[attempt] = max(steps[attempt], sample.steps)
    return steps


def steps_before(run: Run) -> dict[int, int]:
    """For each attempt the steps of all attempts before it; those repeated after a restart count again."""
    steps = steps_of(run)
    return {attempt: sum(steps[before] for before in steps if before < attempt) for attempt in attempts(run)}


def in_calls(progress: Progress) -> float:
    """Seconds that a rank spent in fit, evaluate and predict."""
    return sum(progress.seconds[phase] for phase in PHASES if phase != "script")


def own(progress: Progress) -> float:
    """Seconds of these that a rank worked itself."""
    return sum(progress.seconds[phase] for phase in OWN)


def steps_a_second(run: Run) -> float | None:
    """Steps a second of the time in fit, evaluate and predict; None before the first step."""
    steps = sum(progress.steps for progress in run.progress.values())
    seconds = sum(map(in_calls, run.progress.values()))
    return steps / seconds if steps and seconds else None


def communication(run: Run) -> float | None:
    """Share of the time in fit, evaluate and predict that was spent reducing, over all ranks, from 0 to 1."""
    seconds = sum(map(in_calls, run.progress.values()))
    reducing = sum(progress.seconds["reduce"] for progress in run.progress.values())
    return reducing / seconds if seconds else None


def last_loss(run: Run) -> tuple[float | None, float | None, bool]:
    """The last logged loss, that of validation, and True; or the mean of what the ranks noted last, None and False."""
    logs = [epoch.logs for epoch in run.epochs if "loss" in epoch.logs]
    if logs:
        return logs[-1]["loss"], logs[-1].get("val_loss"), True
    last = [sample.loss for rank in run.progress.values() for sample in list(rank.last.values())[-1:]]
    losses = [loss for loss in last if loss is not None]
    return sum(losses) / len(losses) if losses else None, None, False


def communication_window(run: Run) -> float:
    """Seconds of a stretch over which communication is shown."""
    begin, end = span(run)
    return max((end - begin) / STRETCHES, SHORTEST_STRETCH)


def communication_over_time(progress: Progress, window: float) -> Iterator[list[tuple[float, float]]]:
    """For each attempt (unix seconds, share from 0 to 1) over stretches of at least `window` seconds."""
    for begin, *samples in progress.curves().values():
        shares = []
        for sample in samples:
            if sample.time - begin.time >= window:
                before = dict(zip(PHASES, begin.seconds, strict=True))
                spent = {phase: end - before[phase] for phase, end in zip(PHASES, sample.seconds, strict=True)}
                loop = sum(spent.values()) - spent["script"]
                if loop > 0:
                    share = min(max(spent["reduce"] / loop, 0.0), 1.0)
                    shares.append(((begin.time + sample.time) / 2, share))
                begin = sample
        yield shares


def edge(bucket: float) -> float:
    """Where a bucket of step times begins, in seconds."""
    return SHORTEST_STEP * 2 ** (bucket / BUCKETS_PER_OCTAVE)


def percentile(histogram: Counter[int], share: float) -> float:
    """The step time in seconds that `share` (0 to 1) of the steps stay below, even within a bucket on a log scale."""
    wanted, before = share * histogram.total(), 0
    for bucket in sorted(+histogram):
        if before + histogram[bucket] >= wanted:
            return edge(bucket) * (edge(1) / edge(0)) ** ((wanted - before) / histogram[bucket])
        before += histogram[bucket]
    raise ValueError("an empty histogram has no percentile")


@dataclass(frozen=True)
class OwnTime:
    """How long a rank itself takes for a step."""

    rank: int
    seconds: dict[str, float]  # per step, by phase of OWN
    uncertainty: float  # seconds: two standard deviations of what sampling the phases makes of the sum

    @property
    def total(self) -> float:
        """Seconds per step."""
        return sum(self.seconds.values())


def own_time(rank: int, progress: Progress) -> OwnTime:
    """A rank's own time for a step, over all its steps; there must be some."""
    seconds, steps = progress.seconds, progress.steps
    sampled = seconds["data"] + seconds["forward-backward"] + seconds["reduce"]
    reducing = seconds["reduce"] / sampled if sampled else 0.0
    deviation = math.sqrt(reducing * (1 - reducing) * sampled / SAMPLES_A_SECOND)
    return OwnTime(rank, {phase: seconds[phase] / steps for phase in OWN}, 2 * deviation / steps)


def ranking(run: Run) -> list[OwnTime]:
    """The ranks that did steps, the slowest first."""
    times = [own_time(rank, progress) for rank, progress in run.progress.items() if progress.steps]
    return sorted(times, key=lambda time: (-time.total, time.rank))


def stands_out(ranks: list[OwnTime]) -> float | None:
    """How much longer than the median of the others the first of `ranking` takes, as a share; None if it may be chance.

    Less than 5 %, or less than sampling can tell, counts as chance.
    """
    if len(ranks) < 2:
        return None
    slowest, other = ranks[0], ranks[1:][(len(ranks) - 1) // 2]
    difference = slowest.total - other.total
    if other.total <= 0 or difference < math.hypot(slowest.uncertainty, other.uncertainty):
        return None
    return difference / other.total if difference >= 0.05 * other.total else None


def span(run: Run) -> tuple[float, float]:
    """When the run began and when the last was heard of it, in unix seconds; equal if no time is known."""
    times = [event.time for event in run.events]
    for progress in run.progress.values():
        times += [progress.samples[0].time, *(sample.time for sample in progress.last.values())]
    begin = run.started if run.started is not None else min(times, default=0.0)
    return begin, max([begin, *times])


def trained_share(run: Run) -> float | None:
    """Of the run's time, the share in which steps were done that counted in the end (ETTR); None if it is not known."""
    for event in run.events:
        with contextlib.suppress(*fields.UNREADABLE):
            return min(fields.number(event.content["trained_share"]), 1.0)
    return None


def restart_times(run: Run) -> list[float]:
    """When each attempt but the first began, in unix seconds, by its first sample or event."""
    firsts: dict[int, float] = {}
    for event in run.events:
        firsts.setdefault(event.attempt, event.time)
    for progress in run.progress.values():
        for attempt, samples in progress.curves().items():
            firsts[attempt] = min(firsts.get(attempt, samples[0].time), samples[0].time)
    return [firsts[attempt] for attempt in sorted(firsts)[1:]]
