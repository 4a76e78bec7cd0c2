"""Checkpoints that survive a kill at any moment and can be gone on with on any number of ranks."""
