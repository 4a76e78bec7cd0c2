"""Where ranks run: hosts and their slots by any of the usual ways, and the cores of a host."""
