"""Incremental decoding of tokens to text, and stop texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"  # what decoders give for bytes that are no whole character yet
_MOST_WITHOUT_TEXT = 32  # tokens one after the other: bytes of no character, or special ones


class TextDecoder(Protocol):
    """What turns tokens into text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        ...


class TextStream:
    """Grows a text by tokens.  Each step decodes only the last few: those whose text may still change, after a few
    that give them their context (a word's first token has its space there)."""

    def __init__(self, decoder: TextDecoder) -> None:
        self._decoder = decoder
        self._window: list[int] = []
        self._known = ""  # the text of the first `_read` tokens of the window, which was given
        self._read = 0

    def push(self, token: int) -> str:
        """What the text gains, which is nothing while the last character is not whole."""
        self._window.append(token)
        now = self._decoder.decode(self._window)
        if not now.endswith(_REPLACEMENT) and len(now) > len(self._known):
            piece, self._window = now[len(self._known) :], self._window[self._read :]
            self._known, self._read = self._decoder.decode(self._window), len(self._window)
            return piece
        if len(self._window) - self._read < _MOST_WITHOUT_TEXT:
            return ""
        if now != self._known:
            return self.rest()
        del self._window[self._read :]  # special tokens, which have no text
        return ""

    def rest(self) -> str:
        """What is left at the end: characters that never became whole."""
        piece = self._decoder.decode(self._window)[len(self._known) :]
        self._window, self._known, self._read = [], "", 0
        return piece


class TextOffsets:
    """Where the text of each token begins in the text of all of them; the tokens of one character share its place."""

    def __init__(self, decoder: TextDecoder | None, at: int = 0) -> None:
        self._decoder = decoder
        self._stream = None if decoder is None else TextStream(decoder)
        self._at, self._without = at, 0

    def push(self, token: int) -> int:
        """The place of the next token."""
        begin = self._at
        if self._decoder is None or self._stream is None:
            return begin
        piece = self._stream.push(token)
        if piece and self._without:  # bytes that were no character, and then a token that is text of its own
            own = self._decoder.decode([token])
            if own and _REPLACEMENT not in own and piece.endswith(own):
                begin += len(piece) - len(own)
        self._without = 0 if piece else self._without + 1
        self._at += len(piece)
        return begin


class StopTexts:
    """Finds the first of several texts in one that grows, and holds back what may be the beginning of one; with `keeps`
    the text ends after it."""

    def __init__(self, stops: Sequence[str], keeps: bool = False) -> None:
        self._stops, self._keeps = list(stops), keeps
        self.text = ""  # without what is held back
        self._pending = ""

    def push(self, piece: str) -> bool:
        """Take a piece; True when a stop text is complete, where `text` then ends."""
        window = self._pending + piece
        places = [(place, len(stop)) for stop in self._stops if (place := window.find(stop)) >= 0]
        if places:
            place, length = min(places)
            self.text += window[: place + length] if self._keeps else window[:place]
            self._pending = ""
            return True
        withheld = max((self._beginning(window, stop) for stop in self._stops), default=0)
        self.text += window[: len(window) - withheld]
        self._pending = window[len(window) - withheld :]
        return False

    def finish(self) -> None:
        """The text has ended: what was held back belongs to it."""
        self.text += self._pending
        self._pending = ""

    @staticmethod
    def _beginning(text: str, stop: str) -> int:
        """The length of the longest end of a text with which a stop text begins."""
        for length in range(min(len(text), len(stop) - 1), 0, -1):
            if text.endswith(stop[:length]):
                return length
        return 0
