"""Callbacks on several ranks: Keras's own, those of other packages, and what all of them remember."""
