"""Makes one page of what a run wrote into its folder, without TensorFlow, a server or the network."""
