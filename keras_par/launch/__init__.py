"""The command line `keras-par`; nothing in this room imports TensorFlow."""
