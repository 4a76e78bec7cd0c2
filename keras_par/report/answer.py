"""The page's first sentence: what most of the time in fit went to, and what helps."""

from collections import Counter
from collections.abc import Mapping

from keras_par.report import measures
from keras_par.report.number_format import percent
from keras_par.report.progress import PHASES, Progress, Sample
from keras_par.report.run_folder import Run

LEAST = 0.2  # share of the time in fit that is worth a word
# Of the time in which a process waits for memory: a loop over a file of a third more than its memory became 90 times
# slower, of which the kernel counts 0.1 only. A host that has room waits for 0.0003.
LEAST_FOR_MEMORY = 0.05
START = "start"
FIRST_STEPS = 10  # that a sample may have seen which counts as the end of the start

HELP = {
    "data": "is input, in which steps wait for their rows: let each rank read its own rows only (kp.data.shard), "
    "prefetch, or cache what does not change",
    "reduce": "is communication: send less often (a larger batch_size, or gradient_accumulation_steps), or half as "
    'much by kp.DataParallel(compression="bf16")',
    "callback": "is callbacks and other Python between steps: call them once for several steps by "
    "compile(steps_per_execution=...), or once an epoch",
    START: "is the start, until the first step has ended, in which TensorFlow traces and compiles the model: a longer "
    "run does not pay it again, a restart does",
}
MEMORY = (
    "processes on the ranks' hosts wait for memory, which is full: hold less (a smaller batch_size, "
    "kp.DataParallel(zero=...), recompute), or start fewer ranks on a host"
)


def answer(run: Run) -> str | None:
    """One sentence; None before the first step."""
    spent: Counter[str] = Counter()
    for progress in run.progress.values():
        spent += by_part(progress)
    total, ranking = spent.total(), measures.ranking(run)
    if not total or not ranking:
        return None
    if (waiting := memory_share(run)) >= LEAST_FOR_MEMORY:
        return f"{percent(waiting)} of the time {MEMORY}."
    part = max(HELP, key=lambda each: spent[each])
    share, computing = percent(spent[part] / total), percent(spent["forward-backward"] / total)
    late = late_rank(ranking, run.progress) if spent["reduce"] >= LEAST * total else None
    if late is not None:
        return f"{late}, and {percent(spent['reduce'] / total)} of the time in fit is reduce, in which they wait."
    if spent[part] >= LEAST * total:
        return f"{share} of the time in fit {HELP[part]}."
    if run.num_ranks == 1:
        return f"{computing} of the time in fit is steps, of which one process does not tell what is input."
    return f"{computing} of the time in fit is computing, and nothing else takes more than {share}."


def late_rank(ranking: list[measures.OwnTime], ranks: Mapping[int, Progress]) -> str | None:
    """A sentence about a rank that the others wait for; None if there is none, or they have its trouble, too.

    They wait for it if what it takes longer is half of the time, or more, that the median of them is in reduce.
    """
    slower = measures.stands_out(ranking)
    if slower is None:
        return None
    slowest, other = ranking[0], ranking[1:][(len(ranking) - 1) // 2]
    phase = max(measures.OWN, key=lambda each: slowest.seconds[each] - other.seconds[each])
    waited = ranks[other.rank].seconds["reduce"] / ranks[other.rank].steps
    is_alike = phase != "forward-backward" and other.seconds[phase] >= LEAST * slowest.total
    if is_alike or slowest.total - other.total < waited / 2:
        return None
    return (
        f"The ranks wait for rank {slowest.rank}: it takes {percent(slower)} longer for its own part of a step than "
        f"the median of the others, most of that in {phase}"
    )


def memory_share(run: Run) -> float:
    """The share of the ranks' time in which some process of their host waited for memory."""
    times = [
        (samples[-1].memory_wait - samples[0].memory_wait, samples[-1].time - samples[0].time)
        for progress in run.progress.values()
        for samples in progress.curves().values()
    ]
    return sum(waited for waited, _ in times) / max(sum(lasted for _, lasted in times), 1e-9)


def by_part(progress: Progress) -> Counter[str]:
    """Seconds of a rank in fit, evaluate and predict by phase, those until the first step had ended as the start."""
    spent: Counter[str] = Counter()
    for samples in progress.curves().values():
        begin = [sample for sample in samples if sample.steps <= FIRST_STEPS]
        start = seconds(next((sample for sample in begin if sample.steps), begin[-1])) if begin else Counter()
        spent += seconds(samples[-1]) - start
        spent[START] += start.total() - start["script"]
    del spent["script"]
    return spent


def seconds(sample: Sample) -> Counter[str]:
    """A sample's seconds by phase."""
    return Counter(dict(zip(PHASES, sample.seconds, strict=True)))
