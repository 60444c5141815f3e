"""What is shown of a run beside its numbers."""
