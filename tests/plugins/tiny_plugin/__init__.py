"""A package of somebody else: one of each thing that can be added to RL Lab."""
