"""What brings a query back to a state from which it starts: repair, rewind and claim, and how they are undone."""
