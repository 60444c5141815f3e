"""Writes a trained policy for other runtimes: ONNX, TorchScript or torch.export; and checks it."""

import io
import json
import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rl_lab.collect.play import play
from rl_lab.core.batch import Obs
from rl_lab.core.errors import UserError
from rl_lab.envs.make import maker
from rl_lab.hub.traced_policy import TracedPolicy, check_tensors, difference, flat
from rl_lab.records.commit import write_atomically
from rl_lab.run.policy import LoadedPolicy, Policy

Format = Literal["onnx", "torchscript", "torch-export"]
Call = Callable[[Sequence[Tensor]], Sequence[Any]]
TOLERANCE = 1e-5
STEPS = 100  # of the parity check


@dataclass(frozen=True)
class Written:
    """A file, what goes in and out of it, and how far it is from the policy."""

    file: Path
    format: Format
    inputs: dict[str, list[int | str]]
    outputs: list[str]
    steps: int
    largest_difference: float


def export_policy(
    loaded: LoadedPolicy, file: Path, format: Format, *, probabilities: bool = False
) -> Written:
    """Write the file, after its decisions were compared with the policy's over `STEPS` steps.

    A file whose decisions differ by more than `TOLERANCE` is not written.
    """
    policy = TracedPolicy(loaded, probabilities=probabilities).eval()
    name = loaded.config.algorithm.name
    check_tensors(policy, name)
    facts = {
        "environment": loaded.config.environment.id,
        "algorithm": name,
        "step": loaded.step,
        "inputs": _shapes(policy),
        "outputs": policy.outputs,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tracing: what it may get wrong is measured below
        try:
            data, call = _MAKERS[format](policy, facts)
        except UserError:
            raise
        except Exception as error:  # whatever an exporter raises
            why = next(iter(str(error).splitlines()), type(error).__name__)
            raise UserError(f"{name} with this network cannot be exported: {why[:300]}") from error
    distance, steps = _parity(loaded, policy, call)
    if not distance <= TOLERANCE:
        raise UserError(
            f"not written: over {steps} steps the {format} decisions differ from the policy's by "
            f"up to {distance:.2g}, more than {TOLERANCE:g}"
        )
    try:
        write_atomically(file, data)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error
    return Written(file, format, _shapes(policy), policy.outputs, steps, distance)


def _shapes(policy: TracedPolicy) -> dict[str, list[int | str]]:
    example = policy.example(1)
    return {name: ["N", *each.shape[1:]] for name, each in zip(policy.inputs, example, strict=True)}


def _torchscript(policy: TracedPolicy, facts: dict[str, Any]) -> tuple[bytes, Call]:
    with torch.no_grad():
        traced = torch.jit.trace(policy, policy.example(2), check_trace=False)
    buffer = io.BytesIO()
    torch.jit.save(traced, buffer, _extra_files={"policy.json": json.dumps(facts)})
    data = buffer.getvalue()
    loaded = torch.jit.load(io.BytesIO(data))
    return data, lambda inputs: loaded(*inputs)


def _exported(policy: TracedPolicy) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("N", min=1, max=65536)
    shapes = tuple({0: batch} for _ in policy.inputs)
    with torch.no_grad():
        return torch.export.export(
            policy, policy.example(2), dynamic_shapes=(shapes,), strict=False
        )


def _torch_export(policy: TracedPolicy, facts: dict[str, Any]) -> tuple[bytes, Call]:
    buffer = io.BytesIO()
    torch.export.save(_exported(policy), buffer, extra_files={"policy.json": json.dumps(facts)})
    data = buffer.getvalue()
    loaded = torch.export.load(io.BytesIO(data)).module()
    return data, lambda inputs: loaded(*inputs)


def _onnx(policy: TracedPolicy, facts: dict[str, Any]) -> tuple[bytes, Call]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ImportError as error:
        raise UserError(f"--onnx needs {error.name}: pip install 'rl-lab[onnx]'") from error
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision, we do not
    program = torch.onnx.export(
        _exported(policy),
        (),
        input_names=policy.inputs,
        output_names=policy.outputs,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    model = program.model_proto
    onnx.helper.set_model_props(model, {"policy": json.dumps(facts)})
    onnx.checker.check_model(model)
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    known = {each.name for each in session.get_inputs()}

    def call(inputs: Sequence[Tensor]) -> Sequence[Any]:
        named = zip(policy.inputs, inputs, strict=True)
        # An input that decides nothing, such as a critic's memory, may be gone from the graph.
        return session.run(policy.outputs, {n: each.numpy() for n, each in named if n in known})

    return data, call


_MAKERS: dict[Format, Callable[[TracedPolicy, dict[str, Any]], tuple[bytes, Call]]] = {
    "onnx": _onnx,
    "torchscript": _torchscript,
    "torch-export": _torch_export,
}


def _parity(loaded: LoadedPolicy, traced: TracedPolicy, call: Call) -> tuple[float, int]:
    """The largest difference of actions and memory along episodes, and over how many steps."""
    policy, differences = Policy.of(loaded), list[float]()
    memory = traced.fresh_memory()

    def act(obs: Obs) -> Any:
        nonlocal memory
        theirs = call([*traced.single(obs), *memory])[: 1 + len(memory)]
        action = policy.act(obs)
        ours = [torch.as_tensor(np.asarray(action))[None]]
        ours += [each for _, each in flat(policy.memory)]
        differences.append(difference(ours, theirs))
        memory = tuple(torch.as_tensor(each) for each in theirs[1:])
        return action

    def begin() -> None:
        nonlocal memory
        memory = traced.fresh_memory()
        policy.reset()

    def enough() -> bool:
        return len(differences) >= STEPS

    with closing(maker(loaded.config.environment, training=False)()) as env:
        for _ in play(env, act, seeds=range(STEPS), begin=begin, interrupted=enough):
            pass
    return max(differences), len(differences)
