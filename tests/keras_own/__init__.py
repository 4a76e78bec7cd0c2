"""Runs the tests that Keras brings along, in one process and on ranks."""
