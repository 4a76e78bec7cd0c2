"""The only room that touches Keras's private parts; what it replaces acts on models bound to a strategy alone."""
