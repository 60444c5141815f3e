"""World Models (2018): the algorithm and its networks."""
