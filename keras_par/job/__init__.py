"""The job that this process is a rank of: how it was started, who has failed, what its launcher is told."""
