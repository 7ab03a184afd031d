"""Where events live, and in what order."""
