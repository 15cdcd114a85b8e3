"""Tables of state."""
