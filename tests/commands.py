"""Runs `keras-par plan` within a rank of a pool, where TensorFlow is loaded already, as a process of its own would."""

import contextlib
import io
import os
import sys
from dataclasses import dataclass
from unittest import mock


@dataclass(frozen=True)
class Done:
    """How a command ended: its exit status, and what it wrote."""

    status: int
    output: str
    errors: str


def run_plan(ranks, words: str, **variables: str) -> Done:
    """Runs the command with these words, none of which has a space in it, on the one rank of the pool of that size."""
    [done] = ranks(1).run(run_here, arguments=["plan", *words.split()], variables=variables)
    return Done(*done)


def run_here(arguments: list[str], variables: dict[str, str]) -> tuple[int, str, str]:
    """What a rank does: it leaves its job aside, as the command begins one that does not exist."""
    from keras_par.comm import world
    from keras_par.launch import cli

    with contextlib.ExitStack() as within:
        output = within.enter_context(contextlib.redirect_stdout(io.StringIO()))
        errors = within.enter_context(contextlib.redirect_stderr(io.StringIO()))
        for patch in (
            mock.patch.object(world, "_active", None),
            mock.patch.dict(os.environ, variables),
            mock.patch.object(sys, "path", [*sys.path]),
        ):
            within.enter_context(patch)
        try:
            status = cli.main(arguments)
        except SystemExit as end:
            status = int(end.code or 0)
    return status, output.getvalue(), errors.getvalue()
