"""Where the rows of the batch lie in the tensors of a step, and the random numbers of a rank's rows."""
