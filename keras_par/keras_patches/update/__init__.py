"""Gradients of the global batch, and optimizers that update by them."""
