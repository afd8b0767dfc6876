"""May the challenger take the champion's place? A pure function of what both have shown."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Candidate:
    """A model version as the gate sees it.

    version: number of the registered version. metric: name of `value`, lower is better; None where never measured.
    conditions: what `value` was measured under (number of samples, features, reference, sampler ...).
    """

    version: int
    metric: str
    value: float | None
    conditions: dict[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        return self.value is not None and math.isfinite(self.value)


@dataclass(frozen=True)
class Decision:
    promote: bool
    reason: str
    version: int | None = None
    champion: int | None = None  # the champion that was compared with


def gate(challenger: Candidate, champion: Candidate | None, min_improvement: float = 0.0) -> Decision:
    """Compares like with like; in doubt the champion stays.

    Args:
        min_improvement: relative improvement the challenger must show, 0 = any at all. Equal never wins.
    """
    promote, reason = _judge(challenger, champion, min_improvement)
    return Decision(promote, reason, challenger.version, champion.version if champion else None)


def _judge(challenger: Candidate, champion: Candidate | None, min_improvement: float) -> tuple[bool, str]:
    name, value = challenger.metric, challenger.value
    if not challenger.measured:
        return False, f"version {challenger.version} has no usable {name}: {value}"
    if champion is None:
        return True, f"there is no champion; version {challenger.version} has {name} {value:.6g}"
    if champion.version == challenger.version:
        return False, f"version {challenger.version} is the champion already"
    if different := differences(challenger, champion):
        return False, f"not comparable with champion version {champion.version}: {'; '.join(different)}"
    if not champion.measured:
        return (
            True,
            f"champion version {champion.version} has no usable {name} ({champion.value}), this one {value:.6g}",
        )
    compared = f"{name} {value:.6g} against {champion.value:.6g} of champion version {champion.version}"
    needed = champion.value * (1 - min_improvement)
    if value < needed:
        return True, f"better: {compared}"
    if value == champion.value:
        return False, f"equal: {compared}"
    if value < champion.value:
        return False, f"better, but by less than {min_improvement:.1%}: {compared}"
    return False, f"worse: {compared}"


def differences(one: Candidate, other: Candidate) -> list[str]:
    """The conditions under which the two were not measured alike, one line each."""
    if one.metric != other.metric:
        return [f"metric {one.metric}, not {other.metric}"]
    names = sorted(one.conditions.keys() | other.conditions.keys())
    pairs = [(name, one.conditions.get(name, "unknown"), other.conditions.get(name, "unknown")) for name in names]
    return [f"{name} {mine}, not {theirs}" for name, mine, theirs in pairs if mine != theirs]
