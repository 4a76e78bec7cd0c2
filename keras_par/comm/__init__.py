"""Talking to the other ranks: communicators, the reduction of gradients, and errors that all ranks share."""
