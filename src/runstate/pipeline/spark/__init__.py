"""Sessions of Spark: how they are made, what they send to executors, and what goes wrong in them."""
