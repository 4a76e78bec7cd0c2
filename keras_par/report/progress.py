"""One rank's progress: its counters at the end of each attempt, and few enough samples to draw."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from keras_par.base.heartbeat_page import NUM_BUCKETS
from keras_par.report import fields

PHASES = ("script", "data", "forward-backward", "reduce", "callback")
MOST_SAMPLES, FEWEST_SAMPLES = 1000, 30  # that are kept of one rank
MOST_OF_ALL = 300_000


@dataclass(frozen=True, slots=True)
class Sample:
    """A rank's counters at one time, all since the start of the attempt."""

    time: float  # unix seconds
    attempt: int
    steps: int
    loss: float | None  # mean of this rank's rows in the epoch so far, None outside of training
    seconds: tuple[float, ...]  # in the order of PHASES
    rss: int  # bytes
    memory_wait: float  # seconds since its host's start in which a process there waited for memory


@dataclass
class Progress:
    """What one rank noted, over all attempts."""

    most_samples: int = MOST_SAMPLES
    samples: list[Sample] = field(default_factory=list)
    last: dict[int, Sample] = field(default_factory=dict)  # of each attempt
    peak_rss: int = 0  # bytes
    _step_times: dict[int, dict[int, int]] = field(default_factory=dict)
    _seen: int = 0
    _stride: int = 1

    def add(self, sample: Sample, step_times: dict[int, int]) -> None:
        """Takes the next sample; of many, every second is dropped again and again, but never an attempt's last."""
        if self._seen % self._stride == 0:
            self.samples.append(sample)
        self._seen += 1
        if len(self.samples) > self.most_samples:
            self.samples, self._stride = self.samples[::2], 2 * self._stride
        self.last[sample.attempt] = sample
        self._step_times[sample.attempt] = step_times
        self.peak_rss = max(self.peak_rss, sample.rss)

    def curves(self) -> dict[int, list[Sample]]:
        """For each attempt the samples to draw, in order, among them its last."""
        every = sorted({*self.samples, *self.last.values()}, key=lambda sample: sample.time)
        return {attempt: [sample for sample in every if sample.attempt == attempt] for attempt in self.last}

    @property
    def steps(self) -> int:
        """Steps of training in all attempts."""
        return sum(sample.steps for sample in self.last.values())

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds in each phase in all attempts."""
        sums = [sum(column) for column in zip(*(sample.seconds for sample in self.last.values()), strict=True)]
        return dict(zip(PHASES, sums, strict=True))

    @property
    def step_times(self) -> Counter[int]:
        """Histogram of step times in all attempts."""
        return sum((Counter(histogram) for histogram in self._step_times.values()), Counter())


def most_samples(num_ranks: int) -> int:
    """How many samples of each rank are kept, so that those of all fit into memory."""
    return min(max(MOST_OF_ALL // max(num_ranks, 1), FEWEST_SAMPLES), MOST_SAMPLES)


def parse_sample(line: dict[str, Any]) -> tuple[Sample, dict[int, int]]:
    """A sample and its histogram from a line of progress.jsonl; raises one of fields.UNREADABLE if it is none."""
    seconds = line.get("seconds") or {}
    histogram = {int(bucket): fields.count(times) for bucket, times in (line.get("step_times") or {}).items()}
    if not all(0 <= bucket < NUM_BUCKETS for bucket in histogram):
        raise ValueError("a bucket that does not exist")
    is_training = line.get("call") in (None, "fit", "train_on_batch")
    loss = line.get("loss") if is_training else None
    sample = Sample(
        time=fields.moment(line["time"]),
        attempt=fields.count(line.get("attempt", 0)),
        steps=fields.count(line.get("steps", 0)),
        loss=None if loss is None else fields.figure(loss),
        seconds=tuple(fields.number(seconds.get(phase, 0.0)) for phase in PHASES),
        rss=fields.count(line.get("rss", 0)),
        memory_wait=fields.number(line.get("memory_wait", 0.0)),
    )
    return sample, histogram
