"""Compares the throughput of keras-par with that of what else could train the same model on the same machine."""
