"""When all vote: at every step, or only where one member is not sure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    """One member, the gate, goes on by itself where it is sure; elsewhere all vote.

    GaC, arXiv 2406.12585, section 3.3: if the gate's likeliest token is likelier than the threshold, it is taken and
    nobody else runs. 0 is the gate alone, 1 a vote at every step. On bytes the gate decides on whole tokens as well,
    wherever it is not inside one; the others vote byte by byte.
    """

    gate: int
    """The number of that member."""
    threshold: float = 0.5
    """From 0 to 1."""
    skip: bool = True
    """Where the gate's weighted probability for one choice is above half of the total, nobody can outvote it: then the
    others are not asked. Holds for greedy choices under the linear rule, and never changes the text."""
    boundaries: bool = False
    """In voting on pieces, all vote only where the gate's next piece would begin a token for every member; elsewhere
    the gate goes on alone. After SAFE, arXiv 2510.15346: inside of what a model writes as one token it has never seen
    the beginning, and its vote is worth little."""
