"""Every preset's short run is the same when it is run again."""

import pytest

from rl_lab.analysis.verify import verify
from rl_lab.api import configure
from rl_lab.cli.smoke import SHORT, SKIPPED, attempt
from rl_lab.config.presets import list_presets
from rl_lab.run.session import train

STEPS, LEARNING_STARTS = 600, 300


def configured(preset):
    words = [f"{path}={str(value).lower()}" for path, value in SHORT.items()]
    words += [f"training.total_timesteps={STEPS}", f"checkpoint.every_steps={STEPS // 2}"]
    config, _ = configure(preset, words, small=True)
    if hasattr(config.algorithm, "learning_starts"):  # so that something is learnt, too
        words.append(f"algorithm.learning_starts={LEARNING_STARTS}")
        config, _ = configure(preset, words, small=True)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("preset", list_presets())
def test_a_short_run_is_identical(tmp_path, preset):
    found = []

    def job():
        assert train(configured(preset), root=tmp_path).exit_code == 0
        found.append(verify("@last", tmp_path))

    result = attempt(job)
    if result["status"] == SKIPPED:
        pytest.skip(result["detail"])
    assert found, result["detail"]
    assert found[0].difference is None and found[0].checkpoints
