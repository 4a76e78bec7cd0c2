"""What runs beside each rank: it starts the program, logs, watches and ends it."""
