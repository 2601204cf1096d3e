"""Texts cut to what a report can hold; what is left out is said."""

from __future__ import annotations

# of each file of text, as much is kept
FILE = 8 << 20
# and of what one program says
PROGRAM = 64 << 10


def first_line(message: str) -> str:
    line = message.strip().splitlines()[0] if message.strip() else ""
    return line if len(line) <= 150 else line[:149] + "…"


def clip(text: str, most: int = PROGRAM) -> str:
    """Head and tail of a text that is too long."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def cut(text: str, most: int = FILE) -> str:
    """The lines that fit: one too long is no reason to leave out those behind it."""
    kept, room, lines, characters = [], most, 0, 0

    def leave_out() -> None:
        if lines:
            kept.append(f"[{lines} line(s) with {characters} characters left out]\n")

    for line in text.splitlines(keepends=True):
        if len(line) > room:
            lines, characters = lines + 1, characters + len(line)
            continue
        leave_out()
        lines, characters = 0, 0
        kept.append(line)
        room -= len(line)
    leave_out()
    return "".join(kept)
