"""World Models of a size for tests."""

WORLD_MODELS = {
    "latent": 2,
    "channels": "[2,4]",
    "hidden": 4,
    "mixtures": 2,
    "batch_size": 4,
    "sequences": 2,
    "batch_length": 3,
    "population": 4,
    "episodes": 1,
    "train_every": 16,
    "context": 2,
    "horizon": 3,
    "sigma": 0.5,
}
TINY_PARTS = [f"algorithm.{name}={value}" for name, value in WORLD_MODELS.items()]
WORDS = ["PixelTrack-v0:random", "algorithm.name=world_models", *TINY_PARTS]
ONE = "training.phases=[{name: all, hooks: [collect, update_world_model, update_controller]}]"
PHASES = (
    "training.phases=["
    "{name: explore, policy: random, duration_steps: 128, hooks: [collect]},"
    "{repeat: 2, phases: ["
    "{name: see, type: offline, duration_updates: 2, hooks: [update_vae]},"
    "{name: foresee, type: offline, duration_updates: 2, hooks: [update_dynamics]},"
    "{name: control, duration_cycles: 5, hooks: [collect, update_controller]}]},"
    "{name: wander, policy: brownian, duration_steps: 64, hooks: [collect]},"
    "{name: all, duration_cycles: 2, hooks: [collect, update_world_model, update_controller]}]"
)
