"""Random streams: every consumer has its own, derived from the run's seed by name."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import numpy as np
import torch

Generator = np.random.Generator | torch.Generator


def sequence(seed: int, name: str, *key: int) -> np.random.SeedSequence:
    """The seed material of the stream `name`. Pure: no spawn counter that could be lost."""
    return np.random.SeedSequence(entropy=seed, spawn_key=(crc32(name.encode()), *key))


def integer(seed: int, name: str, *key: int) -> int:
    """One derived 31-bit seed, for an environment's own `reset(seed=…)`."""
    return int(sequence(seed, name, *key).generate_state(1)[0] >> 1)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Whatever is drawn inside from the global generators, by code of others, was never drawn."""
    python, legacy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


class Streams:
    """All randomness of a run in one saveable place: named generators, and the global ones."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.epoch = 0  # how often the run went back and took another future
        self._purpose = ""  # what the streams are lent for
        self._numpy: dict[str, np.random.Generator] = {}
        self._torch: dict[str, torch.Generator] = {}
        self.reseed("")

    def numpy(self, name: str) -> np.random.Generator:
        """The numpy generator called `name`."""
        if name not in self._numpy:
            material = sequence(self.seed, self._purpose + name, *self._key(self._purpose))
            self._numpy[name] = np.random.Generator(np.random.PCG64(material))
        return self._numpy[name]

    def torch(self, name: str, device: str = "cpu") -> torch.Generator:
        """The torch generator called `name`."""
        if name not in self._torch:
            seed = integer(self.seed, self._purpose + name, *self._key(self._purpose))
            self._torch[name] = torch.Generator(device=device).manual_seed(seed)
        return self._torch[name]

    def owns(self, generator: Generator) -> bool:
        """True for the streams that are saved here."""
        return any(each is generator for each in (*self._numpy.values(), *self._torch.values()))

    def reseed(self, purpose: str) -> None:
        """Start every stream again for a purpose; the run itself has the purpose ``""``."""
        key = self._key(purpose)
        random.seed(integer(self.seed, f"{purpose}python", *key))
        np.random.seed(integer(self.seed, f"{purpose}numpy", *key))
        torch.manual_seed(integer(self.seed, f"{purpose}torch", *key))
        for name, stream in self._numpy.items():
            fresh = np.random.PCG64(sequence(self.seed, purpose + name, *key))
            stream.bit_generator.state = fresh.state
        for name, generator in self._torch.items():
            generator.manual_seed(integer(self.seed, purpose + name, *key))

    def begin_epoch(self, epoch: int) -> None:
        """Another future from here: every stream of the run itself starts again, by this number."""
        self.epoch = epoch
        self.reseed("")

    def _key(self, purpose: str) -> tuple[int, ...]:
        """An evaluation has the same seeds in every epoch: scores stay comparable."""
        return (self.epoch,) if self.epoch and not purpose else ()

    @contextmanager
    def borrowed(self, purpose: str) -> Iterator[None]:
        """Lend the streams out, freshly seeded, and put them back bit for bit."""
        saved, before = self.state_dict(), self._purpose
        self._purpose = purpose
        self.reseed(purpose)
        try:
            yield
        finally:
            self._purpose = before
            self.reseed(before)  # streams that did not exist before begin again
            self.load_state_dict(saved)

    def state_dict(self) -> dict[str, Any]:
        """Every stream, as integers and bytes."""
        version, words, gauss = random.getstate()
        legacy: Any = np.random.get_state(legacy=True)
        name, keys, position, has_gauss, cached = legacy
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return {
            "epoch": self.epoch,
            "python": {"version": version, "words": np.array(words, np.uint32), "gauss": gauss},
            "legacy": {
                "name": str(name),
                "keys": np.array(keys),
                "position": int(position),
                "has_gauss": int(has_gauss),
                "cached": float(cached),
            },
            "torch": torch.get_rng_state(),
            "cuda": list(cuda),
            "named_numpy": {k: v.bit_generator.state for k, v in self._numpy.items()},
            "named_torch": {k: v.get_state() for k, v in self._torch.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where the saved streams stood."""
        self.epoch = int(state.get("epoch", 0))  # older checkpoints have none
        python, legacy = state["python"], state["legacy"]
        words = tuple(int(word) for word in python["words"])
        random.setstate((python["version"], words, python["gauss"]))
        fields = ("name", "keys", "position", "has_gauss", "cached")
        np.random.set_state(tuple(legacy[field] for field in fields))
        torch.set_rng_state(state["torch"])
        if state["cuda"]:
            torch.cuda.set_rng_state_all(state["cuda"])
        for name, numpy_state in state["named_numpy"].items():
            self.numpy(name).bit_generator.state = numpy_state
        for name, torch_state in state["named_torch"].items():
            self.torch(name).set_state(torch_state)
