"""The doctor's report as tables for people."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from keras_par.base.sizes import size
from keras_par.doctor.checks import NAMES, Finding
from keras_par.doctor.diagnosis import Advice, Report
from keras_par.doctor.host import Host
from keras_par.doctor.selftest import Message, Outcome


def show(report: Report, with_self_test: bool) -> None:
    """Prints `report` to stdout, what is broken last."""
    console = Console(highlight=False)
    show_pairs(console, "Versions", versions(report))
    show_pairs(console, "Commands", {name: path or "not found" for name, path in report.installed.commands.items()})
    show_pairs(console, "This host", host_facts(report.host) | {"GPUs": gpus(report)})
    show_self_test(console, report, with_self_test)
    if report.recommended:
        show_pairs(console, "Recommended", recommendation(report.recommended))
    show_findings(console, report.findings)


def show_pairs(console: Console, title: str, pairs: dict[str, str]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(width=15, style="dim")
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        table.add_row(f"  {name}", Text(value))
    console.print(Text(title, style="bold"))
    console.print(table)
    console.print()


def versions(report: Report) -> dict[str, str]:
    """What is installed, one line each."""
    found = {name: version or "not installed" for name, version in report.installed.versions.items()}
    source = report.installed.backend_from
    backend = f"{report.installed.backend} ({'by ' if source != 'default' else ''}{source})"
    return {
        "Python": found["python"],
        "TensorFlow": found["tensorflow"],
        "Keras": found["keras"],
        "Keras backend": backend,
        "NumPy": found["numpy"],
        "Horovod": found["horovod"],
        "engines": engines(report),
        "MPI": report.installed.mpi or "not found",
        "keras-par": found["keras-par"],
    }


def engines(report: Report) -> str:
    """What Horovod was built with and without."""
    if not report.loaded or not report.loaded.engines:
        return "unknown until Horovod loads"
    if not report.loaded.with_horovod:
        return "TensorFlow's own collectives"
    flags = report.loaded.engines
    built, missing = ([NAMES[name] for name in flags if flags[name] is flag] for flag in (True, False))
    return f"built with {', '.join(built) or 'none'}" + (f"; without {', '.join(missing)}" if missing else "")


def host_facts(host: Host) -> dict[str, str]:
    """Cores and memory, one line each."""
    quota = "no CPU quota" if host.cpu_quota is None else f"CPU quota of {host.cpu_quota:g} cores"
    physical = f"{host.physical_cores} physical ({host.allowed_cores} allowed here)"
    return {
        "cores": f"{physical}, {host.logical_cores} logical, {quota}",
        "memory": f"{size(host.memory)}, {size(host.memory_available)} available",
        "/dev/shm": f"{size(host.shm)}, {size(host.shm_free)} free",
    }


def gpus(report: Report) -> str:
    """NVIDIA's GPUs, and who sees them."""
    if not report.gpu.devices:
        return "none"
    driver = f"the driver knows CUDA {report.gpu.driver}" if report.gpu.driver else "no driver"
    seen = "" if report.loaded is None else f", TensorFlow sees {report.loaded.gpus}"
    return f"{report.gpu.devices}, {driver}{seen}"


def show_self_test(console: Console, report: Report, with_self_test: bool) -> None:
    """One row for each engine's result, and one for each size of message."""
    if not report.self_test:
        reason = "left out until what is broken is repaired" if with_self_test else "left out, as asked"
        return show_pairs(console, "Self-test", {"": reason})
    results = {NAMES[each.engine]: result(each) for each in report.self_test}
    first = report.self_test[0]  # shared memory is the same beside any engine
    if not first.problem:
        results["shared memory"] = shared_result(first)
    show_pairs(console, "Self-test", results)
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("  all-reduce", width=15)
    measured = {NAMES[each.engine]: each.messages for each in report.self_test}
    if first.shared_messages:
        measured["shared memory"] = first.shared_messages
    for name in measured:
        table.add_column(f"{name}: us", justify="right")
        table.add_column("MB/s", justify="right", min_width=7)
    for sent in {message.bytes: None for messages in measured.values() for message in messages}:
        table.add_row(f"  {size(sent)}", *[cell for each in measured.values() for cell in cells(each, sent)])
    if table.rows:
        console.print(table)
        console.print()


def result(outcome: Outcome) -> str:
    """What came out for one engine."""
    if outcome.problem:
        return f"failed after {outcome.seconds:.1f} s"
    if outcome.engine == "tensorflow":
        return f"{outcome.ranks} ranks: sums and groups of ranks right"
    cycle = f"HOROVOD_CYCLE_TIME={outcome.cycle_time:g}"
    return f"{outcome.ranks} ranks, {cycle}: sums and process sets right"


def shared_result(outcome: Outcome) -> str:
    """What came out for sums through the host's shared memory."""
    if outcome.no_shared_memory is not None:
        return f"not used, because {outcome.no_shared_memory}"
    return f"{outcome.ranks} ranks: sums right; jobs on one host sum this way unless reduce_by='engine'"


def cells(messages: list[Message], size: int) -> tuple[str, str]:
    """Microseconds and megabytes per second for messages of `size` bytes."""
    found = [message for message in messages if message.bytes == size]
    return (f"{found[0].microseconds:.0f}", significant(found[0].megabytes_per_second)) if found else ("-", "-")


def significant(number: float) -> str:
    """Two or more significant digits without an exponent."""
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"


def recommendation(advice: Advice) -> dict[str, str]:
    """How to start jobs, one line each."""
    own = "one core" if advice.threads == 1 else f"{advice.threads} cores"
    bound = f"each rank to {own} of its own" if advice.binding == "core" else "none, ranks share the cores"
    engine = "" if advice.engine == "mpi" else f" --engine {advice.engine}"  # MPI is what it takes by itself
    of_horovod = {"cycle time": f"HOROVOD_CYCLE_TIME={advice.cycle_time:g} (milliseconds)"}
    return {
        "engine": NAMES[advice.engine],
        "ranks": f"{advice.ranks} on this host, {advice.threads} thread{'s' * (advice.threads > 1)} each",
        "binding": bound,
        **({} if advice.engine == "tensorflow" else of_horovod),
        "start jobs by": f"keras-par run -np {advice.ranks}{engine} train.py",
    }


def show_findings(console: Console, findings: list[Finding]) -> None:
    """Notes, then errors, each a paragraph; one line if there is no error."""
    for severity, title, style in (("note", "Note: ", "yellow"), ("error", "Broken: ", "bold red")):
        for finding in findings:
            if finding.severity == severity:
                console.print(Text.assemble((title, style), finding.text))
    if not any(finding.severity == "error" for finding in findings):
        console.print(Text("Nothing is broken.", style="green"))
