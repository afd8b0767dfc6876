"""The stages and their edges, read from dvc.yaml by DVC itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shift_diffusion.config import ConfigError


@dataclass(frozen=True)
class Node:
    """One stage. `meta:` of dvc.yaml holds what only the flow needs, so DVC never reruns a stage for it.

    after: names of the stages whose outs it reads.
    time_limit: seconds, None = none (`meta: {time_limit_s: 3600}`).
    retries: how often to run it again after a crash (`meta: {retries: 2}`; for stages that resume).
    """

    name: str
    after: tuple[str, ...]
    time_limit: float | None
    retries: int


def read_dag(root: Path) -> dict[str, Node]:
    """All stages of the project in an order in which they can run.

    Raises:
        ConfigError: dvc.yaml is missing, invalid or has a cycle.
    """
    import networkx
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(str(root)) as repo:
            graph = repo.index.graph
            order = list(networkx.lexicographical_topological_sort(graph.reverse(copy=False), key=_name))
            nodes = [_node(stage, [_name(before) for before in graph.successors(stage)]) for stage in order]
    except DvcException as error:
        raise ConfigError([f"{root / 'dvc.yaml'}: {error}"]) from error
    if not nodes:
        raise ConfigError([f"{root / 'dvc.yaml'}: no stages"])
    return {node.name: node for node in nodes}


def _name(stage) -> str:
    """What `dvc repro` in the project's folder calls it, wherever this process works."""
    own = getattr(stage, "name", None)
    if own and stage.path_in_repo == "dvc.yaml":
        return own
    return f"{stage.path_in_repo}:{own}" if own else stage.path_in_repo


def _node(stage, after: list[str]) -> Node:
    meta = stage.meta or {}
    limit, retries = meta.get("time_limit_s"), meta.get("retries", 0)
    if limit is not None and not (isinstance(limit, int | float) and limit > 0):
        raise ConfigError(
            [f"dvc.yaml: {_name(stage)}.meta.time_limit_s: {limit!r} is not a positive number of seconds"]
        )
    if not (isinstance(retries, int) and retries >= 0):
        raise ConfigError([f"dvc.yaml: {_name(stage)}.meta.retries: {retries!r} is not a count"])
    return Node(_name(stage), tuple(sorted(after)), limit, retries)


def select(dag: dict[str, Node], names: list[str]) -> dict[str, Node]:
    """The named stages and all they depend on; everything when no name is given.

    Raises:
        ConfigError: a name is not a stage, with the nearest one.
    """
    import difflib

    problems = []
    for name in names:
        if name not in dag:
            near = difflib.get_close_matches(name, dag, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            problems.append(f"--stage {name}: no such stage; {hint}stages: {', '.join(dag)}")
    if problems:
        raise ConfigError(problems)
    wanted = set(names or dag)
    for node in reversed(dag.values()):
        if node.name in wanted:
            wanted.update(node.after)
    return {name: node for name, node in dag.items() if name in wanted}
