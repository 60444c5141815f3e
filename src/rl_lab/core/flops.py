"""Floating-point operations, counted while they run, by the formulas of `torch.utils`."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class FlopCount(TorchDispatchMode):
    """`with FlopCount() as count:`; then `count.total` of matrix products and convolutions.

    It changes no result. Code that runs in numpy, or was compiled, is not seen.
    """

    total = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        """One operation."""
        given = kwargs or {}
        result = func(*args, **given)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += int(formula(*args, **given, out_val=result))
        return result
