"""Models that are tied to a strategy: what they are, hold and were compiled with."""
