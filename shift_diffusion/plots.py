"""Line and bar charts as PNG files, the same look everywhere and the same bytes for the same numbers."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from shift_diffusion.files import write_bytes_atomic


def line_plot(
    path: str | Path,
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    xlabel: str,
    ylabel: str,
    title: str,
    log: bool = False,
    log_x: bool = False,
    markers: bool = False,
) -> None:
    """One line per entry of `series`: name -> (x values, y values)."""
    figure, axes = _figure()
    for name, (x, y) in series.items():
        axes.plot(x, y, label=name, marker="o" if markers or len(x) < 3 else None, linewidth=1.5)
    for axis, scaled, index in ((axes.yaxis, log, 1), (axes.xaxis, log_x, 0)):
        if scaled:
            _logarithmic(axis, [value for line in series.values() for value in line[index] if value > 0])
    if len(series) > 1:
        axes.legend(frameon=False)
    _finish(figure, axes, path, xlabel, ylabel, title)


def bar_plot(
    path: str | Path,
    groups: Mapping[str, Mapping[str, float]],
    ylabel: str,
    title: str,
    errors: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Grouped bars: group (a place on the x axis) -> bar name -> height."""
    figure, axes = _figure()
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    width = 0.8 / max(len(names), 1)
    for index, name in enumerate(names):
        at = [(place, bars[name]) for place, bars in enumerate(groups.values()) if name in bars]
        spread = [(errors or {}).get(group, {}).get(name, 0.0) for group, bars in groups.items() if name in bars]
        bars = axes.bar(
            [x + (index - (len(names) - 1) / 2) * width for x, _ in at],
            [y for _, y in at], width * 0.95, yerr=spread if any(spread) else None, label=name,
        )  # fmt: skip
        axes.bar_label(bars, fmt="%.3g", fontsize=7)
    axes.set_xticks(range(len(groups)), list(groups))
    if len(names) > 1:
        axes.legend(frameon=False)
    _finish(figure, axes, path, "", ylabel, title)


def _logarithmic(axis, values: Sequence[float]) -> None:
    """A logarithmic axis; within a decade, where powers of ten say nothing, with plain numbers."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    if values and max(values) < 10 * min(values):
        axis.set_major_locator(MaxNLocator(6))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")


def _figure():
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure  # no pyplot: no global state, no display

    figure = Figure(figsize=(7, 4.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _finish(figure, axes, path: str | Path, xlabel: str, ylabel: str, title: str) -> None:
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})  # no version: bytes are compared
    write_bytes_atomic(path, buffer.getvalue())
