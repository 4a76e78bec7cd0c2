"""Programs that the tests start on several ranks."""
