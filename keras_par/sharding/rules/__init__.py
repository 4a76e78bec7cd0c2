"""What Keras's operations do with sharded tensors, where they need not be whole."""
