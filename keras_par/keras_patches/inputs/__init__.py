"""Gives a model the rows of each batch that are this rank's, whatever its input is."""
