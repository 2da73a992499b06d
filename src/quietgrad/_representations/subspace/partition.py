"""Parameter groups: one basis each (a block-diagonal B), with the basis vectors shared out by √(group size)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

from quietgrad._gradients.space import Shapes, coordinates

ParameterGroups = int | str | Mapping[str, Sequence[str]]
"""A number of about equal parts, "modules" for one group a top-level module, or name → blocks or modules of it."""

Partition = dict[str, tuple[str, ...]]
"""Group name → the names of its blocks."""


def partition(space: Shapes, groups: ParameterGroups) -> Partition:
    """Put every block of the space into exactly one group."""
    if isinstance(groups, Mapping):
        return _own_groups(space, groups)
    if groups == "modules":
        return _by_module(space)
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise ValueError(
            f'Expected groups >= 1, "modules" or a mapping of group name to parameter names, got {groups!r}.'
        )
    return _equal_parts(space, groups)


def share_rank(rank: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """k_g ∝ √size_g with Σ k_g = rank, 1 ≤ k_g ≤ size_g.

    Args:
        rank: k, basis vectors over all groups.
        sizes: group → number of parameters.
    """
    total = sum(sizes.values())
    if rank < len(sizes):
        raise ValueError(
            f"Expected rank >= {len(sizes)}, one basis vector a group, got {rank}. Raise rank or use fewer groups."
        )
    if rank > total:
        raise ValueError(f"Expected rank <= {total}, the number of parameters, got {rank}. Lower rank.")
    shares = dict.fromkeys(sizes, 1)
    # The next vector goes to the group that is furthest below its proportional share (D'Hondt).
    waiting = [(-math.sqrt(size) / 2, name) for name, size in sizes.items() if size > 1]
    heapq.heapify(waiting)
    for _ in range(rank - len(sizes)):
        _, name = heapq.heappop(waiting)
        shares[name] += 1
        if shares[name] < sizes[name]:
            heapq.heappush(waiting, (-math.sqrt(sizes[name]) / (shares[name] + 1), name))
    return shares


def group_sizes(space: Shapes, groups: Partition) -> dict[str, int]:
    """Parameters in each group."""
    return {group: coordinates({name: space[name] for name in names}) for group, names in groups.items()}


def _equal_parts(space: Shapes, parts: int) -> Partition:
    """Runs of whole blocks of about equal size; a block is never cut, so a huge one may leave fewer parts."""
    total = max(1, coordinates(space))
    chosen: dict[str, list[str]] = {}
    before = 0
    for name, shape in space.items():
        middle = before + shape.numel() / 2
        part = min(parts - 1, int(middle * parts / total))
        chosen.setdefault(f"part{part}", []).append(name)
        before += shape.numel()
    return {group: tuple(names) for group, names in chosen.items()}


def _by_module(space: Shapes) -> Partition:
    chosen: dict[str, list[str]] = {}
    for name in space:
        chosen.setdefault(name.split(".")[0], []).append(name)
    return {group: tuple(names) for group, names in chosen.items()}


def _own_groups(space: Shapes, groups: Mapping[str, Sequence[str]]) -> Partition:
    chosen: dict[str, list[str]] = {group: [] for group in groups}
    for name in space:
        holders = [group for group, members in groups.items() if _holds(members, name)]
        if len(holders) != 1:
            found = "no group" if not holders else f"the groups {holders}"
            raise ValueError(
                f"Expected groups to partition the parameters, but {name!r} is in {found}. Name each parameter, or "
                "the module it belongs to, in exactly one group."
            )
        chosen[holders[0]].append(name)
    empty = [group for group, names in chosen.items() if not names]
    if empty:
        raise ValueError(
            f"Expected every group to hold a parameter, but {empty} match none. Known: {list(space)}."
        )
    return {group: tuple(names) for group, names in chosen.items()}


def _holds(members: Sequence[str], name: str) -> bool:
    return any(name == member or name.startswith(f"{member}.") for member in members)
