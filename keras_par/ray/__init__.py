"""Ranks on a cluster of Ray's."""

from keras_par.ray.function_call import run as run

__all__ = ["run"]
