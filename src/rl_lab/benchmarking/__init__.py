"""How fast this library is: environments, collecting, updates, the stages of a run."""
