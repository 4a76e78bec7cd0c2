"""Variables of which each rank holds a shard, and what Keras's operations do with them."""
