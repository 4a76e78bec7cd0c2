"""`keras-par doctor`: what is here for training, what is broken, and how to repair it."""
