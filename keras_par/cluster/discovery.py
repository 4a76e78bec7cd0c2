"""Asks a script of the user's which hosts there are just now, as Horovod's elastic jobs do."""

import subprocess
from pathlib import Path

from keras_par.cluster.hosts import ClusterError, Host, merged, parse_host

SECONDS = 30  # how long the script may take


def discovered(script: Path) -> list[Host]:
    """The hosts that an executable prints, a line "host:slots" for each; a host without a number has 1 slot.

    It may print none.

    Raises:
        ClusterError: the script cannot be run, fails or takes too long, or prints what is no host.
    """
    try:
        result = subprocess.run(
            [str(script.absolute())], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"it took more than {SECONDS} s"
        raise ClusterError(
            f"keras-par: the host discovery script '{script}' cannot be run ({why}): make it a program that prints a "
            "line 'host:slots' for each host."
        ) from None
    if result.returncode != 0:
        said = (result.stderr.strip().splitlines() or ["it printed no error"])[-1]
        raise ClusterError(
            f"keras-par: the host discovery script '{script}' ended with status {result.returncode} ({said}): let it "
            "print a line 'host:slots' for each host."
        )
    lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
    return merged([parse_host(line, f"what '{script}' prints") for line in lines])
