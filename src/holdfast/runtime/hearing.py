"""What one reader is shown of the pieces that reach it: never a text with a hole in it."""

from holdfast.runtime.bus import Attempt, Piece
from holdfast.runtime.models.base import Delta

AGAIN = "asked again"
LOST = "pieces were lost"


class Hearing:
    """Shows pieces in order, each once, until the event of their turn says it all."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._answered = 0  # the last turn that is recorded
        self._place: tuple[int, Attempt] = (0, (0, 0))
        self._length: int | None = 0  # of the attempt, as it was shown; None: some was lost

    def answered(self, turn: int) -> None:
        """The answer of this turn was shown: what still comes of it is old."""
        self._answered = max(self._answered, turn)

    def take(self, piece: Piece) -> list[Delta]:
        """What to show of a piece, and perhaps first: forget what you have of this turn."""
        if piece.at < 0:
            return [self._delta(piece, piece.text)]
        place = (piece.turn, piece.attempt)
        if piece.turn <= self._answered or place < self._place:
            return []  # recorded already, or said by a driver that others have replaced
        told = []
        if place > self._place:
            if self._length and piece.turn == self._place[0]:
                told.append(self._reset(piece, AGAIN))
            self._place, self._length = place, 0
        if self._length is None and piece.at == 0:
            self._length = 0  # it is told once more from the beginning
        if self._length is None or piece.at > self._length:
            if self._length:
                told.append(self._reset(piece, LOST))
            self._length = None
            return told
        new = piece.text[self._length - piece.at :]
        self._length += len(new)
        return [*told, self._delta(piece, new)] if new else told

    def _delta(self, piece: Piece, text: str) -> Delta:
        return Delta(self._session_id, piece.turn, piece.kind, text, piece.call_id)

    def _reset(self, piece: Piece, why: str) -> Delta:
        return Delta(self._session_id, piece.turn, "reset", why)
