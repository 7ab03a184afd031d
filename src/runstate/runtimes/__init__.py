"""What runs on top of the store: the orchestrator, and the telemetry that tells others about its runs."""
