"""`keras-par run`: starts a script on several ranks and stays with it until it is over."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from keras_par.base.arguments import USAGE_STATUS, complain, not_negative, positive, seconds
from keras_par.base.arguments import shown as quoted
from keras_par.cluster.binding import devices
from keras_par.cluster.hosts import ClusterError, Place, places
from keras_par.cluster.reach import Ssh, require_reachable
from keras_par.cluster.slurm import is_in_allocation
from keras_par.launch import engines, run_folder
from keras_par.launch.attempts import Attempts, noted_signals
from keras_par.launch.console import Console
from keras_par.launch.engines import EngineError, Plan
from keras_par.launch.job import HANG_SECONDS, Job
from keras_par.launch.next_world import AwaitedWorlds, ChangingWorlds, FixedWorlds
from keras_par.launch.run_folder import RunFolder
from keras_par.launch.run_request import (
    Span,
    UsageError,
    command_of,
    hosts_of,
    limits_of,
    places_of,
    require_one_launcher,
    variables_of,
)

ELASTIC_SECONDS = 600.0  # as horovodrun has it
BACKGROUND_FOLDER = "log_output"


def add_parser(commands) -> None:
    """Adds the sub-command `run` to the argparse sub-parsers `commands`."""
    parser = commands.add_parser(
        "run",
        help="start a script on several ranks, here or on many hosts",
        usage="keras-par run -np N [options] (script.py | -m module) [argument ...]",
        description=(
            "Starts a script on several ranks, shows their output, and says which rank failed or hangs, and why. "
            "Options of the script come after its name."
        ),
        epilog="Ctrl-C once: all ranks stop after a step and write a last checkpoint; twice: they are killed.",
        allow_abbrev=False,
    )
    add_places(parser.add_argument_group("where"))
    add_worlds(parser.add_argument_group("hosts that come and go"))
    add_output(parser.add_argument_group("output"))
    add_trouble(parser.add_argument_group("when something goes wrong"))
    add_program(parser.add_argument_group("what"))
    parser.set_defaults(run=run)


def add_places(where: argparse._ArgumentGroup) -> None:
    number = where.add_mutually_exclusive_group()
    number.add_argument(
        "-np", dest="num_ranks", type=positive, metavar="N", help="number of ranks; default: all slots of the hosts"
    )
    number.add_argument(
        "--nproc-per-node",
        "--nproc_per_node",
        dest="per_node",
        type=positive_or_auto,
        metavar="N",
        help="as torchrun's: ranks on each host; auto: one for each GPU of this host, or else for each core",
    )
    where.add_argument("--nnodes", type=span, metavar="N", help="take so many of the hosts; MIN:MAX: see --min-np")
    where.add_argument("--node-rank", "--node_rank", type=not_negative, help=argparse.SUPPRESS)  # torchrun's
    hosts = where.add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="hosts, and how many ranks each may have")
    hosts.add_argument("--hostfile", type=Path, metavar="FILE", help="the same, a line 'HOST slots=N' for each")
    hosts.add_argument(
        "--rank-table", type=Path, metavar="FILE", help="JSON with servers, devices, rank ids; or RANK_TABLE_FILE"
    )
    hosts.add_argument(
        "--host-discovery-script",
        type=Path,
        metavar="FILE",
        help="a program that prints a line HOST:SLOTS for each host that there is just now",
    )
    where.add_argument("-p", "--ssh-port", type=positive, metavar="PORT", help="of the hosts' ssh servers")
    where.add_argument(
        "-i", "--ssh-identity-file", "--ssh-identity", type=Path, metavar="FILE", help="the key by which ssh goes there"
    )
    where.add_argument(
        "--engine",
        choices=tuple(engines.NAMES),
        help="default: KERAS_PAR_ENGINE, mpi if Horovod has it, tensorflow without Horovod",
    )


def add_worlds(worlds: argparse._ArgumentGroup) -> None:
    worlds.add_argument(
        "--min-np",
        "--min-num-proc",
        dest="min_ranks",
        type=positive,
        metavar="N",
        help="go on with fewer ranks after a loss, but at least N; and with more when hosts come (default: -np)",
    )
    worlds.add_argument(
        "--max-np",
        "--max-num-proc",
        dest="max_ranks",
        type=positive,
        metavar="N",
        help="never more than N ranks (default: all slots of the hosts)",
    )
    worlds.add_argument(
        "--elastic-timeout",
        type=seconds,
        default=ELASTIC_SECONDS,
        metavar="SECONDS",
        help="to wait for hosts that are lost or missing (default: %(default)g)",
    )


def add_output(logs: argparse._ArgumentGroup) -> None:
    logs.add_argument("--log-dir", type=Path, metavar="DIR", help="write rank.<r>/stdout and stderr below DIR instead")
    logs.add_argument("--tee", action="store_true", help="with --log-dir: show the output, too")
    logs.add_argument("--merge-stderr", action="store_true", help="stderr goes where stdout goes")
    logs.add_argument(
        "--background",
        action="store_true",
        help=f"return at once; all output is in DIR/log (default: {BACKGROUND_FOLDER}/log)",
    )
    logs.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="show all output: also TensorFlow's of level INFO, and stacks of ranks that only follow another",
    )
    logs.add_argument("--dry-run", action="store_true", help="show the command and its variables, and start nothing")


def add_trouble(trouble: argparse._ArgumentGroup) -> None:
    trouble.add_argument(
        "--hang-after",
        type=seconds,
        default=HANG_SECONDS,
        metavar="SECONDS",
        help="without progress of a rank that are a hang (default: %(default)g)",
    )
    trouble.add_argument(
        "--on-hang",
        choices=("report", "abort"),
        default="report",
        help="abort ends the job with status 124 (default: %(default)s)",
    )
    trouble.add_argument(
        "--max-restarts",
        type=not_negative,
        default=0,
        metavar="K",
        help="start again after a failure, so often; the script goes on by kp.callbacks.Resume (default: 0)",
    )


def add_program(program: argparse._ArgumentGroup) -> None:
    program.add_argument("-m", dest="is_module", action="store_true", help="what follows is a module, as in python -m")
    program.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="give the ranks a variable, again for each; without a value this shell's",
    )
    program.add_argument("script", metavar="script.py", help="a Python file, or a program such as pytest")
    program.add_argument("arguments", nargs=argparse.REMAINDER, metavar="argument", help="its arguments")


def run(arguments: argparse.Namespace) -> int:
    """Runs the job that `arguments` describe and returns its exit status; 2 after one sentence about a wrong usage."""
    told = None
    if arguments.background and not arguments.dry_run:
        arguments.log_dir, arguments.tee, told = arguments.log_dir or Path(BACKGROUND_FOLDER), True, fork()
    try:
        require_one_launcher()
        command = command_of(arguments.is_module, arguments.script, arguments.arguments)
        ssh = Ssh(arguments.ssh_port, arguments.ssh_identity_file)
        given = variables_of(arguments.env)
        engine = engines.choose(arguments.engine or given.get(engines.VARIABLE_OF_ENGINE))

        def plan(found: Sequence[Place]) -> Plan:
            return engines.plan(engine, found, command, os.environ, given, ssh)

        console = Console()
        worlds, first = worlds_of(arguments, engine, ssh, console)
        if arguments.dry_run:
            print(shown(plan(first)))
            return 0
        if isinstance(worlds, AwaitedWorlds) and not plan(first).is_one_host:
            require_reachable([place.host for place in first], ssh)
        folder = RunFolder(arguments.log_dir)
    except (ClusterError, EngineError, UsageError) as error:
        return complain("run", str(error))
    if told is not None:
        leave_terminal(folder, told)
    forward = arguments.log_dir is None or arguments.tee
    if not forward:
        console.say(f"the ranks' output goes to {folder.path}/rank.<r>/stdout and stderr; --tee shows it, too")
    with noted_signals(until_exit=True) as interrupts:
        job = Job(
            *(command, engine, worlds, plan, folder, console, interrupts, ssh, arguments.max_restarts),
            *(arguments.merge_stderr, forward, arguments.verbose, arguments.hang_after, arguments.on_hang == "abort"),
        )
        status = Attempts(job).run()
        is_shown = console.close()
    if not is_shown:
        os._exit(status)  # Python's own end would flush the stream in which a thread still writes, and abort
    return status


def worlds_of(
    arguments: argparse.Namespace, engine: str, ssh: Ssh, console: Console
) -> tuple[ChangingWorlds | FixedWorlds, list[Place]]:
    """The worlds of the job, and the first if all hosts can be reached.

    Raises:
        ClusterError: the hosts are wrong.
        UsageError: what is asked for does not fit together.
    """
    limits = limits_of(arguments)
    if limits is None:
        found = places_of(arguments)
        if engine == "mpi" and is_in_allocation(os.environ):  # mpirun gets to the hosts by srun, and ssh may not
            return FixedWorlds(found), found
        return AwaitedWorlds(found, arguments.elastic_timeout, ssh, console.say), found
    hosts = hosts_of(arguments)[: limits.most_hosts]
    slots = sum(host.slots for host in hosts)
    worlds = ChangingWorlds(lambda: hosts_of(arguments), limits, arguments.elastic_timeout, ssh, console.say)
    return worlds, places(min(slots, limits.most or slots), hosts)


def fork() -> int:
    """Goes on in a child. This process ends when that writes to the pipe that it is returned, or ends."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # a stream that is closed, whose place no pipe is to have
        pass
    os.close(number)
    heard, told = os.pipe()
    if os.fork():
        os.close(told)
        sys.exit(0 if os.read(heard, 1) else USAGE_STATUS)
    os.close(heard)  # so that the child fails to write, and starts nothing, if this process is gone
    return told


def leave_terminal(folder: RunFolder, told: int) -> None:
    """Says where the job is found, and lets it have neither a terminal nor anybody who waits for it."""
    assert folder.path is not None
    pid, log = os.getpid(), folder.path / run_folder.LOG
    if folder.note is not None:
        print(f"keras-par: {folder.note}")
    print(f"keras-par: started in the background as process {pid}")
    print(f"  log:  {log} (tail -f {shlex.quote(str(log))})")
    print(f"  stop: kill -INT {pid} (once: after a step, with a last checkpoint; twice: at once)", flush=True)
    os.setsid()
    with log.open("wb") as file, open(os.devnull) as nothing:
        for number, stream in enumerate((nothing, file, file)):
            os.dup2(stream.fileno(), number)
    # Those that were closed.
    sys.stdout, sys.stderr = sys.stdout or os.fdopen(1, "w"), sys.stderr or os.fdopen(2, "w")
    os.write(told, b"1")
    os.close(told)


def shown(plan: Plan) -> str:
    """The command as a shell would take it, its variables before it."""
    variables = [f"{name}={in_shell(name, value)}" for name, value in sorted(plan.environment.items())]
    return " \\\n  ".join([*variables, shlex.join(plan.command)])


def in_shell(name: str, value: str) -> str:
    """A variable's value as a shell would take it, by the name where it has it, which may be a secret."""
    return f'"${name}"' if os.environ.get(name) == value and name.isidentifier() else shlex.quote(value)


def span(text: str) -> Span:
    least, _, most = text.partition(":")
    found = Span(positive(least), positive(most or least))
    if found.least > found.most:
        raise argparse.ArgumentTypeError(f"{quoted(text)} must be MIN:MAX with MIN not above MAX")
    return found


def positive_or_auto(text: str) -> int:
    return devices() if text == "auto" else positive(text)
