"""Which cases of long sweeps `make test` runs: every n-th of each. `make test-all` runs all."""

EVERY: dict[str, int] = {}
