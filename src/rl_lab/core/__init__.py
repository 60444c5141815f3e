"""Layer 0: the vocabulary everything else is written in. Imports torch, numpy, nothing of ours."""
