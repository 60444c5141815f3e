"""How metrics are shown: precision, order, highlight, unit. One YAML says it for every reader.

Its block `monitors` is about what is wrong, not about how it looks: see `monitoring/catalog.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from rl_lab.core.checker import Checker
from rl_lab.core.options import Options, option
from rl_lab.records.formatting import format_number

Better = Literal["higher", "lower"]

BUILT_IN = Path(__file__).parents[1] / "configs" / "metrics.yaml"
OWN = Path("configs") / "metrics.yaml"  # of the user, in the folder where the command is typed
MONITORS = "monitors"  # the one key that is no metric


@dataclass(frozen=True, kw_only=True)
class MetricStyle(Options):
    """How one metric, or every metric of a pattern, is shown."""

    precision: int = option(4, "decimals", low=0, high=12)
    highlight: bool = option(False, "one of the numbers that matter most")
    show: bool = option(True, "in the live table")
    better: Better | None = option(None, "which direction is good, where one is")
    unit: str = option("", "written behind the number")

    def text(self, value: float) -> str:
        """The value as a reader wants it."""
        return format_number(value, self.precision)

    def best(self, values: Iterable[float]) -> float | None:
        """The best of the values; None if no direction is good, or there is nothing to compare."""
        known = [value for value in values if value == value]  # without NaN
        if self.better is None or not known:
            return None
        return max(known) if self.better == "higher" else min(known)


class Display:
    """The styles of all metrics, by name or pattern, in the order of the screen."""

    def __init__(self, styles: Mapping[str, MetricStyle]) -> None:
        self.styles = dict(styles)
        self._places = {key: place for place, key in enumerate(self.styles)}
        self._found: dict[str, str | None] = {}  # metric -> the key that decides

    def __getitem__(self, name: str) -> MetricStyle:
        """How this metric is shown."""
        key = self._key(name)
        return MetricStyle() if key is None else self.styles[key]

    def ordered(self, names: Iterable[str]) -> list[str]:
        """The names in the order of the file; those of one pattern by alphabet."""
        last = len(self._places)

        def place(name: str) -> tuple[int, str]:
            key = self._key(name)
            return (last if key is None else self._places[key], name)

        return sorted(names, key=place)

    def _key(self, name: str) -> str | None:
        if name not in self._found:
            matches = (key for key in self.styles if fnmatchcase(name, key))
            self._found[name] = name if name in self.styles else next(matches, None)
        return self._found[name]


def load_display(files: Sequence[Path] | None = None) -> Display:
    """The lab's own file, and the user's before it: its entries come first, in its own order.

    What an entry of the user leaves out is as in the lab's entry of the same name. All mistakes of
    all files are reported at once.
    """
    checker = Checker()
    styles: dict[str, MetricStyle] = {}
    for file in [BUILT_IN, OWN] if files is None else files:
        merged = {}
        for key, block in read_metrics_yaml(file, checker.problems).items():
            if key == MONITORS:
                continue
            before = vars(styles[key]) if key in styles else {}
            whole = {**before, **block} if isinstance(block, dict) else block
            merged[key] = checker.block(MetricStyle, whole, f"{file}: {key}")
        styles = {**merged, **{key: style for key, style in styles.items() if key not in merged}}
    checker.finish()
    return Display(styles)


def read_metrics_yaml(file: Path, problems: list[str]) -> dict[str, Any]:
    """The blocks of a metrics.yaml, not checked yet; none if there is no file."""
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problems.append(f"{file}: {' '.join(str(error).split())}")
        return {}
    if tree is not None and not isinstance(tree, dict):
        problems.append(f"{file}: must be a mapping from metrics to how they are shown")
        return {}
    return {str(key): block for key, block in (tree or {}).items()}
