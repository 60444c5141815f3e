"""The metrics of a run as columns: numpy arrays by name, and pandas where it is installed."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.records.metrics import STEP, iterate_metrics

SHOWN = 4  # names in a repr


class Columns(dict[str, NDArray[Any]]):
    """Metrics by name, each an array with one value per row; NaN where a row lacks the metric.

    The first column is `step`. A row is written at every logging interval, and metrics come and go:
    `eval/return_mean` is only in rows that follow an evaluation (see `of`).
    """

    def of(self, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """One metric without the rows that lack it, ready to plot.

        Args:
            name: A metric, such as `eval/return_mean`.

        Returns:
            Its steps and its values, two arrays of equal length.

        Raises:
            UserError: The run has no such metric.
        """
        if name not in self:
            raise UserError(f"this run has no metric '{name}'{did_you_mean(name, self)}")
        known = ~np.isnan(self[name].astype(float))
        return self[STEP][known], self[name][known]

    def to_pandas(self) -> Any:
        """All metrics as a table.

        Returns:
            A pandas DataFrame with the step as its index.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:  # it is optional, and slow to import
            raise UserError("no DataFrame without pandas: pip install pandas") from error
        return pandas.DataFrame(dict(self)).set_index(STEP)

    def __repr__(self) -> str:
        """How much there is, and the first names."""
        names = [name for name in self if name != STEP]
        more = f", … {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return f"Columns({len(self[STEP])} rows: {', '.join(names[:SHOWN])}{more})"


def read_columns(metrics_file: Path) -> Columns:
    """Every complete row of a metrics.jsonl, live ones included."""
    steps: list[int] = []
    found: dict[str, list[Any]] = {}
    for row in iterate_metrics(metrics_file):
        for name, value in row.items():
            if name != STEP:
                column = found.setdefault(name, [])
                column += [np.nan] * (len(steps) - len(column))
                column.append(value)
        steps.append(int(row[STEP]))
    for column in found.values():
        column += [np.nan] * (len(steps) - len(column))
    columns = {name: np.array(found[name]) for name in sorted(found)}
    return Columns({STEP: np.array(steps, dtype=np.int64), **columns})
