"""YAML as the earlier projects print it, word for word, and a folder in which it can be run."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]

MASTER = """\
# configs/experiments/ppo_cartpole.yaml
experiment:
  name: "ppo_cartpole_baseline"
  seed: 42
  device: "cuda"

algorithm:
  name: "ppo"
  lr: 3e-4
  gamma: 0.99
  gae_lambda: 0.95
  clip_ratio: 0.2
  value_coef: 0.5
  entropy_coef: 0.01

environment:
  name: "CartPole-v1"
  wrapper: "gym"
  normalize_obs: true
  normalize_reward: true

network:
  actor:
    type: "mlp"
    hidden_dims: [64, 64]
    activation: "tanh"
  critic:
    type: "mlp"
    hidden_dims: [64, 64]
    activation: "tanh"

buffer:
  type: "trajectory"
  size: 2048

training:
  total_timesteps: 1000000
  eval_frequency: 10000
  checkpoint_frequency: 50000
  num_eval_episodes: 10

logging:
  terminal: true
  tensorboard: true
  wandb:
    enabled: true
    project: "rl-experiments"
    tags: ["ppo", "cartpole"]
"""

MY_ALGORITHM = """\
# configs/algorithms/my_algorithm.yaml
algorithm:
  name: "my_algorithm"
  # Your hyperparameters
"""

THREE_PHASES = """\
training:
  total_timesteps: 1000000
  phases:
    # Phase 1: Collect random data
    - name: data_collection
      type: online
      buffer: replay              # Which buffer to use
      duration_steps: 10000       # Run for 10k env steps
      workflow_hooks:
        - collect                 # Only collect, no training

    # Phase 2: Train world model
    - name: train_world_model
      type: offline              # No collection
      buffer: replay
      duration_updates: 50000    # 50k gradient updates
      workflow_hooks:
        - update_world_model

    # Phase 3: Joint training
    - name: joint_training
      type: online
      buffer: replay
      duration_steps: 500000
      workflow_hooks:
        - collect
        - update_world_model
        - update_controller
"""

YOUR_ALGORITHM_ENV = """\
# @package _global_
defaults:
  - /workflow: your_algorithm
  - /components/representation_learner@components.encoder: your_encoder
  - /controller@controllers.actor: your_controller
  - /buffer: world_model_sequence
  - /environment: cartpole
  - _self_

experiment:
  name: your_algorithm_cartpole
  seed: 42
  device: auto

_dims:
  observation: 4
  action: 2
  latent: 64

algorithm:
  learning_rate: 1e-4
  # Your hyperparameters

components:
  encoder:
    input_dim: ${_dims.observation}
    latent_dim: ${_dims.latent}

training:
  total_timesteps: 100000
  phases:
    - name: training
      type: online
      buffer: replay
      duration_steps: 100000
      workflow_hooks:
        - collect
        - update_world_model
"""

SOLVER = """\
env_id: CartPole-v1
n_envs: 4
env_wrappers: [{ id: MaskObservation, indices: [1, 3] }]
normalize_obs: 'rolling'
policy_lr: lin_0.001
n_steps: 32
batch_size: 0.25
max_timesteps: 512
"""

SOLVER_ENVIRONMENT = """\
env_id: CartPole-v1
_base: &base
  n_envs: 4
  n_steps: 16
  max_timesteps: 256
  eval_freq_epochs: 2
spec:
  action_space: {discrete: 2}
ppo:
  <<: *base
  policy: mlp
  policy_lr: lin_0.001
  batch_size: 0.5
fast:
  <<: *base
  algo_id: reinforce
  policy_targets: advantages
"""

SOLVER_KEYS = """\
env_id: CarRacing-v3
algo_id: ppo
project_id: cars
n_envs: 4
subproc: true
n_steps: 32
batch_size: 0.25
max_timesteps: 4096
grayscale_obs: true
resize_obs: true
frame_stack: 4
policy: cnn
policy_kwargs: {}
policy_lr: 3e-4
policy_lr_schedule: linear
policy_lr_schedule_start_value: 3e-4
policy_lr_schedule_end_value: 1e-5
policy_lr_schedule_start: 0.1
policy_lr_schedule_end: 0.9
clip_range: 0.2
clip_range_vf: 0.2
normalize_advantages: true
optimizer: adamw
eval_freq_epochs: 15
eval_warmup_epochs: 50
eval_episodes: 10
spec: {action_space: {box: 3}}
"""

PARTS = """\
from torch import nn


class YourEncoder(nn.Linear):
    def __init__(self, input_dim, latent_dim):
        super().__init__(input_dim, latent_dim)


class YourController(nn.Linear):
    def __init__(self):
        super().__init__(64, 2)
"""


def write_seed_files(folder: Path) -> None:
    """Everything below `printed/`, with what `your_algorithm_env` names in its defaults."""
    printed = folder / "printed"
    files = {
        "ppo_cartpole.yaml": MASTER,
        "my_algorithm.yaml": MY_ALGORITHM,
        "three_phases.yaml": THREE_PHASES,
        "solver.yaml": SOLVER,
        "solver_keys.yaml": SOLVER_KEYS,
        "objects.yaml": "env_id: ALE/Pong-v5\nobs_type: objects\n",
        "policies.yaml": "env_id: CartPole-v1\npolicy: mlp\npolicy_kwargs: {ortho_init: true}\n",
        "configs/experiment/CartPole-v1/mine.yaml": SOLVER,
        "configs/environments/CartPole-v1.yaml": SOLVER_ENVIRONMENT,
        "configs/experiment/your_algorithm_env.yaml": YOUR_ALGORITHM_ENV,
        "configs/workflow/your_algorithm.yaml": (
            "_target_: src.workflows.your_algorithm.YourWorkflow\n"
        ),
        "configs/components/representation_learner/your_encoder.yaml": (
            "_target_: src.components.parts.YourEncoder\n"
        ),
        "configs/controller/your_controller.yaml": (
            "_target_: src.components.parts.YourController\n"
        ),
        "configs/buffer/world_model_sequence.yaml": (
            "# @package _global_\nbuffers: {replay: {type: rollout}}\n"
        ),
        "configs/environment/cartpole.yaml": "id: CartPole-v1\nnum_envs: 4\n",
    }
    for name, text in files.items():
        (printed / name).parent.mkdir(parents=True, exist_ok=True)
        (printed / name).write_text(text)
    for name in ("workflows", "components"):
        (folder / "src" / name).mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "your_workflow.py", folder / "src/workflows/your_algorithm.py")
    (folder / "src/components/parts.py").write_text(PARTS)
