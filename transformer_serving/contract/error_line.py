"""Other people's errors and names as one line of ours: theirs have several, or say nothing."""

from __future__ import annotations

# The cause fits; what follows it is mostly advice, or a place in somebody else's code.
MOST = 200


def one_line(text: object, most: int | None = None) -> str:
    """All of it with single spaces, of `most` characters at most."""
    return " ".join(str(text).split())[:most]


def in_ascii(text: str) -> str:
    """Every other character as its escape, for logs that take no other."""
    return text.encode("ascii", "backslashreplace").decode()


def printable(text: str) -> str:
    """What a terminal would obey, and ends of lines, as their escapes: names of others may hold
    them, and so an engine's words."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def first_line(error: BaseException) -> str:
    """The beginning of its first line; "" where it says nothing."""
    return (str(error).strip().splitlines() or [""])[0][:MOST]


def named_line(error: BaseException) -> str:
    """Its first line behind its type, which is all that some errors say."""
    return f"{type(error).__name__}: {first_line(error)}"
