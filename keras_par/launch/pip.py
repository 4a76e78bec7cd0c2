"""Runs this environment's pip for the installer, and says in one sentence what failed."""

import subprocess
import sys


class InstallError(RuntimeError):
    """A step of the installation failed; the message is one sentence that says which and what to do."""


def pip(*arguments: str) -> None:
    """Runs this environment's pip quietly; raises InstallError with pip's last line if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, "--quiet"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or ["no message"]
        said = next((line for line in lines if line.lower().startswith("error")), lines[-1])
        raise InstallError(f"'pip {' '.join(arguments)}' failed: {said}")
