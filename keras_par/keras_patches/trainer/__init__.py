"""`fit`, `evaluate` and `predict`: epochs, steps, and the functions that Keras calls for each."""
