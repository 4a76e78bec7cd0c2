"""What layers, losses and metrics need to know of the other ranks while a step runs."""
