"""How fast: environments, collecting, updates, the stages of a run, and other libraries."""
