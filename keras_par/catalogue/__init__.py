"""Strategies in files: reading and writing them, and saying in which line one is wrong."""
