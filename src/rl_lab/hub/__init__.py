"""Publish policies on the Hugging Face hub, and load those of others without running their code."""
