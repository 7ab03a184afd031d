"""What events mean: typed events, a state, and a pure fold from one to the other."""
