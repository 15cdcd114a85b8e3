"""What a user declares: the operator with its function, columns and times. It computes nothing."""
