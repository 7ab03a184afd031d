"""Figures of a fleet, and the page that shows them."""
