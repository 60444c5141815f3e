"""`rl-lab export-policy`: a trained policy as a file for another runtime."""

from pathlib import Path
from typing import Annotated

import typer

from rl_lab.cli.arguments import RUNS, Json, Run, RunsDir, Trust
from rl_lab.cli.printing import say, say_json, warn
from rl_lab.core.errors import UserError


def export_policy(
    run: Run,
    onnx: Annotated[
        Path | None, typer.Option(metavar="FILE.onnx", help="for ONNX Runtime (extra onnx)")
    ] = None,
    torchscript: Annotated[
        Path | None, typer.Option(metavar="FILE.pt", help="for libtorch, without Python")
    ] = None,
    torch_export: Annotated[
        Path | None, typer.Option(metavar="FILE.pt2", help="a program of torch.export")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="also those of discrete actions")
    ] = False,
    trust: Trust = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Write a trained policy for another runtime: ONNX, TorchScript or PT2.

    The normalizer is inside; a memory is further inputs and outputs. Before a file is written, its
    decisions are compared with the policy's over 100 steps.
    """
    from rl_lab.hub.policy_files import Format, export_policy

    asked: dict[Format, Path | None] = {
        "onnx": onnx,
        "torchscript": torchscript,
        "torch-export": torch_export,
    }
    files = {format: file for format, file in asked.items() if file is not None}
    if not files:
        raise UserError("name a file: --onnx FILE, --torchscript FILE or --torch-export FILE")
    from rl_lab import api

    def report(line: str) -> None:
        warn(f"warning: {line}")

    found = []
    for format, file in files.items():
        loaded = api.load_policy(
            run, runs_dir=runs_dir, device="cpu", trust=trust, warn=report
        ).loaded
        try:
            found.append(export_policy(loaded, file, format, probabilities=probabilities))
        finally:
            loaded.context.train_environment.close()
    if as_json:
        say_json([{**vars(each), "file": str(each.file)} for each in found])
        return 0
    for each in found:
        shapes = ", ".join(f"{name} {shape}" for name, shape in each.inputs.items())
        say(f"{each.file}: {shapes} -> {', '.join(each.outputs)}".replace("'", ""))
        say(f"largest difference over {each.steps} steps: {each.largest_difference:.1e}")
    return 0
