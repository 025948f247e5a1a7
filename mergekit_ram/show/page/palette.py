"""The page's colours, by day and by night; each has one meaning.

Agents have hues. How many others changed a parameter is told by slates, methods by taupes, and λ as
meant and as stored by mauves. Figures are described in the colours of the day; the page exchanges
them for those of the night where its surroundings are dark. A test computes every contrast.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Colour:
    """One colour, in ``#rrggbb``, on a light and on a dark page."""

    day: str
    night: str


INK = Colour("#1c2430", "#e8ecf2")
SOFT = Colour("#566173", "#a9b4c4")
PAPER = Colour("#ffffff", "#14181f")
PANEL = Colour("#f5f7fa", "#1d232d")
LINE = Colour("#c9d1dc", "#414c5c")
MARK = Colour("#8a4b00", "#f0b35a")
"""Of what must not be overlooked."""

PAGE = {"ink": INK, "soft": SOFT, "paper": PAPER, "panel": PANEL, "line": LINE, "mark": MARK}
"""By the names of the page's style."""

AGENTS = (
    Colour("#1667b3", "#5aa9ee"),
    Colour("#b35900", "#f09a3e"),
    Colour("#147a48", "#3fc187"),
    Colour("#c22f44", "#ff7d86"),
    Colour("#00757f", "#35c4d0"),
    Colour("#a8338f", "#ec86d6"),
    Colour("#686b00", "#c9cc4a"),
    Colour("#6450c8", "#a79bff"),
)
"""By the agent's place; a ninth has the first one's again, with another symbol and dash."""

METHODS = (
    Colour("#9c856e", "#82756a"),
    Colour("#8a7660", "#a08c78"),
    Colour("#725f4b", "#b6a18d"),
    Colour("#553f2d", "#d3c3b2"),
    Colour("#372a1e", "#f1e3d4"),
)
MEANT = Colour("#4f2f4a", "#dcb8d6")
STORED = Colour("#94698d", "#9d7296")

DEGREE_ENDS = (Colour("#202a44", "#dfe5f2"), Colour("#6a7690", "#7e8aa6"))
"""Of what an agent changed alone, and of what all others changed too."""

ON_DEGREE = Colour("#ffffff", "#000000")
"""Digits on these."""

SCALE = (Colour("#eef3f9", "#222a36"), Colour("#74aede", "#356795"))
"""Of maps, from nothing to the most."""

GUIDE = Colour("#6f7888", "#8d97a8")
"""Of lines that mark a value, of intervals and edges."""


def degrees(number: int) -> list[Colour]:
    """Shades of an ordered series, as many as asked for."""
    first, last = DEGREE_ENDS
    parts = [step / max(number - 1, 1) for step in range(number)]
    return [
        Colour(between(first.day, last.day, part), between(first.night, last.night, part))
        for part in parts
    ]


def between(first: str, last: str, part: float) -> str:
    """A colour on the way from one to another; ``part`` goes from 0 to 1."""
    mixed = (
        round(a + (b - a) * part) for a, b in zip(channels(first), channels(last), strict=True)
    )
    return "#" + "".join(f"{value:02x}" for value in mixed)


def channels(colour: str) -> tuple[int, int, int]:
    """Red, green and blue, 0 to 255."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return red, green, blue


def style() -> str:
    """The colours as variables of the page's style."""
    day = "".join(f"  --{name}: {colour.day};\n" for name, colour in PAGE.items())
    night = "".join(f"    --{name}: {colour.night};\n" for name, colour in PAGE.items())
    return (
        f":root {{\n  color-scheme: light dark;\n{day}}}\n"
        f"@media (prefers-color-scheme: dark) {{\n  :root {{\n{night}  }}\n}}\n"
    )


def nights(most_degrees: int) -> dict[str, str]:
    """The night's colour for each of the day's that a figure may have.

    Args:
        most_degrees: shades that the record's figure of overlap degrees has.
    """
    used = [*AGENTS, *METHODS, MEANT, STORED, ON_DEGREE, *SCALE, GUIDE, INK, PANEL]
    return {colour.day: colour.night for colour in (*used, *degrees(most_degrees))}
