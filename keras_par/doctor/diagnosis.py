"""Puts the doctor's facts and checks together, in an order in which each makes sense, and says how to start jobs."""

from dataclasses import dataclass, field
from typing import Literal

from rich.console import Console

from keras_par.doctor import checks, gpu, host, installed, selftest
from keras_par.doctor.checks import ENGINES, NAMES, Finding
from keras_par.doctor.gpu import Gpu
from keras_par.doctor.host import Host
from keras_par.doctor.installed import Installed, Loaded
from keras_par.doctor.selftest import Outcome

TENSORFLOW = "tensorflow"  # the engine that needs no Horovod
RANK_MEMORY = 1 << 30  # bytes: a rank takes half of this for TensorFlow and Horovod alone
CYCLE_BOUND, CYCLE_DEFAULT = 0.2, 1.0  # milliseconds; short cycles steal time from ranks that share cores


@dataclass(frozen=True)
class Advice:
    """How to start jobs on this host."""

    engine: str
    ranks: int
    threads: int  # a rank
    binding: Literal["core", "none"]  # core: each rank to `threads` cores of its own
    cycle_time: float  # HOROVOD_CYCLE_TIME, milliseconds


@dataclass
class Report:
    """All that the doctor found. What comes after the first error that makes it useless is None or empty."""

    installed: Installed
    host: Host
    gpu: Gpu
    loaded: Loaded | None = None
    self_test: list[Outcome] = field(default_factory=list)
    recommended: Advice | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_healthy(self) -> bool:
        """True if nothing is broken."""
        return not any(finding.severity == "error" for finding in self.findings)


def examine(engine: str | None, ranks: int, with_self_test: bool) -> Report:
    """Looks at everything, or at one `engine` alone; the self-test has `ranks` ranks and waits for repairs."""
    report = Report(installed.find(), host.measure(), gpu.find())
    of_horovod = [] if engine == TENSORFLOW else [checks.check_horovod]
    for check in (checks.check_versions, checks.check_backend, *of_horovod, checks.check_ssh):
        report.findings += check(report.installed)
    with_horovod = engine != TENSORFLOW and report.installed.versions["horovod"] is not None
    what = "TensorFlow and Horovod" if with_horovod else "TensorFlow"
    with Console(stderr=True).status(f"Loading {what} ...") as status:
        if report.is_healthy:
            report.loaded = installed.load(report.installed.commands["mpirun"], with_horovod=with_horovod)
            report.findings += checks.check_loading(report.installed, report.loaded)
        if report.is_healthy:
            check_starting(report, engine, ranks)
        for each in usable_engines(report, engine) if report.is_healthy and with_self_test else []:
            status.update(f"Self-test over {NAMES[each]}, {ranks} ranks ...")
            try_ranks(report, each, ranks)
    report.recommended = recommend(report, engine)
    return report


def check_starting(report: Report, engine: str | None, ranks: int) -> None:
    """Checks what starting ranks needs, once it is known which engines Horovod has."""
    assert report.loaded is not None
    report.findings += checks.check_engines(report.installed, report.loaded, engine)
    report.findings += gpu.check(report.gpu, report.installed, report.loaded)
    if "mpi" in usable_engines(report, engine):
        most = max(ranks, advise(report.host, "mpi").ranks)
        report.findings += checks.check_root(report.installed)
        report.findings += checks.check_shared_memory(report.host, most)


def try_ranks(report: Report, engine: str, ranks: int) -> None:
    """Adds the outcome of the self-test over `engine`."""
    outcome = selftest.run(engine, report.installed, ranks, cycle_time(ranks, report.host))
    others = [other for other in usable_engines(report, None) if other != engine]
    report.self_test.append(outcome)
    report.findings += checks.check_self_test(outcome, others)


def usable_engines(report: Report, wanted: str | None) -> list[str]:
    """The engines (`wanted` alone, if given) that Horovod has and whose launcher is here, the faster one first.

    TensorFlow's, where it is wanted or Horovod is not installed.
    """
    if report.loaded and report.loaded.error is None and not report.loaded.with_horovod:
        return [TENSORFLOW] if wanted in (None, TENSORFLOW) else []
    engines = report.loaded.engines if report.loaded else {}
    has_launcher = {"mpi": report.installed.commands["mpirun"] is not None, "gloo": True}
    return [each for each in ENGINES if engines.get(each) and has_launcher[each] and wanted in (None, each)]


def recommend(report: Report, wanted: str | None) -> Advice | None:
    """How to start jobs here, on the first engine that did not fail; None if there is none."""
    failed = [outcome.engine for outcome in report.self_test if outcome.problem]
    engines = [engine for engine in usable_engines(report, wanted) if engine not in failed]
    if not engines or report.loaded is None:
        return None
    return advise(report.host, engines[0], report.loaded.gpus)


def advise(host: Host, engine: str, num_gpus: int = 0) -> Advice:
    """One rank for each of `num_gpus` that TensorFlow sees, else one a core, as far as memory goes."""
    ranks = num_gpus or max(1, min(host.usable_cores, host.memory_available // RANK_MEMORY))
    return Advice(
        engine=engine,
        ranks=ranks,
        threads=max(1, host.usable_cores // ranks),
        binding="core" if ranks <= host.usable_cores else "none",
        cycle_time=cycle_time(ranks, host),
    )


def cycle_time(ranks: int, host: Host) -> float:
    """HOROVOD_CYCLE_TIME in milliseconds for `ranks` ranks on `host`, which keras-par run binds where cores suffice."""
    return CYCLE_BOUND if ranks <= host.usable_cores else CYCLE_DEFAULT
