"""Other projects' interfaces on ours. Each module needs the extra of its own name."""
