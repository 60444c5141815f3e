"""What `dreamer.py` runs with the Python of a sheeprl installation: its Dreamer v3, timed.

    python benchmarks/dreamer_peer.py STEPS on|off

Prints the seconds of every gradient step as JSON. This file needs sheeprl and nothing of RL Lab.
"""

import json
import sys
import tempfile
import time
from typing import Any

SIZES = [
    "algo.per_rank_batch_size=8",
    "algo.per_rank_sequence_length=16",
    "algo.horizon=15",
    "algo.dense_units=64",
    "algo.mlp_layers=2",
    "algo.world_model.stochastic_size=8",
    "algo.world_model.discrete_size=8",
    "algo.world_model.recurrent_model.recurrent_state_size=128",
    "algo.world_model.recurrent_model.dense_units=64",
    "algo.world_model.transition_model.hidden_size=64",
    "algo.world_model.representation_model.hidden_size=64",
]
REST = [
    "exp=dreamer_v3",
    "env=gym",
    "env.id=CartPole-v1",
    "env.num_envs=4",
    "env.sync_env=True",
    "env.capture_video=False",
    "algo.cnn_keys.encoder=[]",
    "algo.cnn_keys.decoder=[]",
    "algo.mlp_keys.encoder=[vector]",
    "algo.mlp_keys.decoder=[vector]",
    "algo.learning_starts=200",
    "algo.replay_ratio=0.5",
    "algo.run_test=False",
    "buffer.size=20000",
    "buffer.memmap=False",
    "buffer.checkpoint=False",
    "checkpoint.every=0",
    "checkpoint.save_last=False",
    "metric.log_level=0",
    "fabric.accelerator=cpu",
    "fabric.devices=1",
    "fabric.precision=32-true",
    "num_threads=1",
]


def main(steps: int, compile: str) -> None:
    """Train for so many gradient steps, and time each."""
    import torch
    from sheeprl import cli
    from sheeprl.algos.dreamer_v3 import dreamer_v3

    torch.set_num_threads(1)
    train, seconds = dreamer_v3.train, []

    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        result = train(*arguments, **options)
        seconds.append(time.perf_counter() - began)
        return result

    dreamer_v3.train = timed
    with tempfile.TemporaryDirectory() as folder:
        total = f"algo.total_steps={200 + 2 * steps}"
        compiled = [f"algo.compile.enabled={compile == 'on'}", "algo.compile.mode=default"]
        sys.argv = ["sheeprl", *REST, *SIZES, *compiled, total, f"hydra.run.dir={folder}"]
        cli.run()
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
