"""Policies that turn noise into chunks of actions: diffusion and flow matching."""
