"""The list of all that is replaced in Keras and TensorFlow, and what replaces it."""
