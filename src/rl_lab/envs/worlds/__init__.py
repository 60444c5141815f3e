"""Worlds of our own: tasks for memories, finite POMDPs, and a task with two ways to solve it."""

import gymnasium as gym

_HERE = "rl_lab.envs.worlds"
LENGTHS = (10, 20, 50, 100)  # of T-mazes that have an id of their own

# id -> where its class is, and its arguments.
WORLDS: dict[str, tuple[str, dict[str, object]]] = {
    "PocMemory-v0": ("poc_memory:PocMemoryEnv", {}),
    "TMaze-v0": ("t_maze:TMazeEnv", {}),
    **{f"TMaze-{n}-v0": ("t_maze:TMazeEnv", {"length": n}) for n in LENGTHS},
    **{f"TMazeActive-{n}-v0": ("t_maze:TMazeEnv", {"length": n, "active": True}) for n in LENGTHS},
    "RepeatPrevious-v0": ("cards:RepeatPreviousEnv", {}),
    "RepeatFirst-v0": ("cards:RepeatFirstEnv", {}),
    "CountRecall-v0": ("cards:CountRecallEnv", {}),
    "TwoArcs-v0": ("two_arcs:TwoArcsEnv", {}),
    "Tiger-v0": ("pomdp_models:TigerEnv", {}),
    "RiverSwim-v0": ("pomdp_models:RiverSwimEnv", {}),
    "Hallway-v0": ("pomdp_models:HallwayEnv", {}),
}


def register() -> None:
    """Give Gymnasium every id."""
    for id, (place, arguments) in WORLDS.items():
        gym.register(id, entry_point=f"{_HERE}.{place}", kwargs=dict(arguments))
