"""Processes that stand ready with TensorFlow loaded and do what the tests send them."""
