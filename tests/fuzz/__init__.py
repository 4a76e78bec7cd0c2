"""Inputs drawn at random for all that reads what comes from outside, each with a seed of its own."""
