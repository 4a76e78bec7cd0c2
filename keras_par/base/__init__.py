"""What every room may use: this package's version, its cache, the page of a rank's heartbeat."""
