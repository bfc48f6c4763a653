"""Choosing for one text, from what the members think together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from unisono.arrays import Probs
from unisono.config import TextConfig
from unisono.errors import NoCommonChoice
from unisono.sampling import Tilt, drawn, greedy, shaped
from unisono.voting.base import Pooled


def tilt_of(settings: TextConfig) -> Tilt | None:
    """The penalties and biases of the settings; None where there are none."""
    made = Tilt(
        settings.repetition_penalty,
        settings.presence_penalty,
        settings.frequency_penalty,
        {piece.encode(): bias for piece, bias in settings.logit_bias.items()},
    )
    return None if made == Tilt(1.0, 0.0, 0.0, {}) else made


class Sampler:
    """Chooses for one text. The same settings with the same seed choose the same, whatever else is going on."""

    def __init__(
        self,
        settings: TextConfig,
        end: int,
        tilt: Tilt | None = None,
        find: Callable[[bytes], int | None] = lambda piece: None,
    ) -> None:
        """`tilt` is applied here, where choices are pieces; `find` tells which choice a piece is."""
        self.settings, self._end, self._tilt = settings, end, tilt
        found = {find(piece): bias for piece, bias in tilt.biases.items()} if tilt else {}
        self._biased = {choice: bias for choice, bias in found.items() if choice is not None}
        self._written: Counter[int] = Counter()
        self._random = np.random.default_rng(settings.seed)

    @property
    def is_plain(self) -> bool:
        """Whether it takes the likeliest of what the members think, unchanged."""
        return self.settings.temperature == 0 and self._tilt is None

    def choose(self, pooled: Pooled, may_end: bool = True) -> tuple[int, float]:
        """A choice, and its probability in the pooled distribution as it was.

        Raises:
            NoCommonChoice: only the end could be chosen, and it may not be.
        """
        if self.is_plain:
            choice, prob = pooled.best()
            if may_end or choice != self._end:
                return choice, prob
        probs = pooled.probs
        used = self._tilt.tilted(probs, self._written, self._biased) if self._tilt else probs.astype(np.float64)
        if not may_end:
            used[self._end] = 0
        if not used.any():
            raise NoCommonChoice("Only the end of the text could follow, and it may not: lower min_tokens.")
        choice = self._draw(used) if self.settings.temperature > 0 else greedy(used)
        self._written[choice] += 1
        return choice, float(probs[choice])

    def _draw(self, probs: Probs) -> int:
        s = self.settings
        return drawn(shaped(probs, s.temperature, s.top_k, s.top_p, s.min_p), self._random.random())

    def member(self, weights: Sequence[float]) -> int:
        """One member, drawn by the weights."""
        return drawn(np.asarray(weights, dtype=np.float64), self._random.random())
