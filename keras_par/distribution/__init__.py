"""The strategies, and the start of the job they run in."""
