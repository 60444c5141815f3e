"""Layer 2: stepping environments with a policy, for training and for evaluation."""
