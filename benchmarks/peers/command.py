"""The command of `python -m benchmarks.peers`: its options, the call and its columns."""

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.peers.speed import bench_peers
from benchmarks.peers.until import bench_until
from rl_lab.cli.arguments import Json
from rl_lab.cli.bench import SETTINGS, Columns, Output, Repeats, run_bench
from rl_lab.core.errors import UserError

SWITCHES = {"on": True, "off": False}
TRAININGS: Columns = {
    "seconds in all": lambda row: row["total_seconds"],
    "return": lambda row: f"{row['first_return']:.1f} → {row['last_return']:.1f}",
    "learned": lambda row: f"{row['learned']} of {row['runs']}",
}
ARRIVALS: Columns = {
    "steps": lambda row: int(row["steps"]),
    "arrived": lambda row: f"{row['reached']} of {row['rounds']}",
}

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=SETTINGS)


@app.command(context_settings=SETTINGS)
def peers(
    env: Annotated[
        str | None,
        typer.Option(metavar="ID", help="a Gymnasium id; default: that of the settings"),
    ] = None,
    settings: Annotated[
        str | None,
        typer.Option(
            metavar="matched|zoo|quick|halfcheetah|lstm|lstm_32|gru|dqn|dqn_zoo|sac",
            help="matched: 8 x 128, 4 epochs of 4 minibatches; zoo: 8 x 32, 20 epochs, decaying; "
            "quick: 128 x 32, 6 epochs of 4; "
            "halfcheetah: 8 x 256, 10 epochs of 32; lstm: matched, with that memory, lstm_32: and "
            "gradients through 32 steps, gru: ours against the peer's LSTM; "
            "dqn: CleanRL's, dqn_zoo: RL Baselines3 Zoo's; "
            "sac: one gradient step per step on Pendulum; default: matched, with --until zoo",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="environment steps of each training")] = 100_000,
    until: Annotated[
        float | None,
        typer.Option(
            metavar="RETURN",
            help="time from the command until evaluations in a row reach this; --steps is the most",
        ),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="STEPS",
            help="with --until: steps between evaluations; default: a tenth of --steps",
        ),
    ] = None,
    repeats: Repeats = 5,
    compile: Annotated[
        str,
        typer.Option(
            metavar="on|off",
            help="whether our own update is compiled; with --until, on adds a row for that",
        ),
    ] = "off",
    threads: Annotated[
        int, typer.Option(min=1, help="of everyone, each on a core; 2 pay for sac's wide layers")
    ] = 1,
    cpu: Annotated[
        bool,
        typer.Option("--cpu", help="seconds of CPU: what else runs on the machine counts less"),
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            help="only this one besides rl-lab: rl-lab-default, plain, sb3, sb3-contrib, sbx, "
            "cleanrl, jax; repeatable",
        ),
    ] = None,
    cleanrl: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="CleanRL's own ppo.py, which then takes part"),
    ] = None,
    output: Output = None,
    as_json: Json = False,
) -> int:
    """Train here and in other libraries: equal settings, in turns, a process for each.

    The ratio says how many times as fast rl-lab is. A row also says what the training took in all,
    imports included, and whether it learned. Peers come with: pip install 'rl-lab[peers]'
    """
    if compile not in SWITCHES:
        raise UserError(f"--compile {compile}: write on or off")
    asked: dict[str, Any] = {
        "env": env,
        "settings": settings or ("matched" if until is None else "zoo"),
        "steps": steps,
        "repeats": repeats,
        "compile": SWITCHES[compile],
        "names": peer or [],
        "threads": threads,
    }
    if until is not None:
        if cpu:
            raise UserError("--cpu is not for --until, which is about waiting")
        return run_bench(
            f"until-{asked['settings']}",
            lambda tell: bench_until(until, every=every, tell=tell, **asked),
            output,
            as_json,
            columns=ARRIVALS,
        )
    asked["cpu"] = cpu
    if cleanrl is not None and not cleanrl.is_file():
        raise UserError(f"--cleanrl {cleanrl}: there is no such file")
    asked["script"] = None if cleanrl is None else str(cleanrl.resolve())
    if every is not None:
        raise UserError("--every is for --until: say which return is to be reached")
    return run_bench(
        f"peers-{asked['settings']}{'-compiled' * SWITCHES[compile]}"
        + (f"-{threads}-threads" if threads > 1 else "")
        + "-cpu" * cpu,
        lambda tell: bench_peers(tell=tell, **asked),
        output,
        as_json,
        columns=TRAININGS,
    )
