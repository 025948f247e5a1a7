"""Names that come from files, shown as what they are: data.

A model or a tensor may be called anything. Whatever would move a cursor, colour a terminal, hide
text or end a line is written as an escape before it is shown.
"""

from __future__ import annotations

import logging
import re

MARKDOWN = re.compile(r"[\\`*\[\]<>|&$]|(?<![^\W_])_|_(?![^\W_])")
"""What has a meaning in a line of markdown, HTML and formulas included; an underscore within a
word has none."""


def visible(text: object) -> str:
    """A text in which every character can be seen; those that cannot are Python's escapes.

    >>> visible("a\\x1b[31mb\\nc")
    'a\\\\x1b[31mb\\\\nc'
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown
    )


def in_markdown(text: object, kept: str = "") -> str:
    """A text that markdown shows as it is, in a table's cell too.

    Args:
        text: to show.
        kept: characters that may have their meaning.

    >>> in_markdown("a|<b>")
    'a&#124;&#60;b&#62;'
    """
    return MARKDOWN.sub(
        lambda found: found[0] if found[0] in kept else f"&#{ord(found[0])};", visible(text)
    )


def as_code(text: object) -> str:
    """A text as code in a line of markdown, whichever backticks it holds.

    >>> as_code("a`b")
    '`` a`b ``'
    """
    shown = visible(text)
    longest = max(map(len, re.findall("`+", shown)), default=0)
    if not longest:
        return f"`{shown}`"
    fence = "`" * (longest + 1)
    return f"{fence} {shown} {fence}"


class VisibleNames(logging.Filter):
    """Makes every line of a log one line that can be seen whole."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape a message before any handler formats it."""
        message = record.getMessage()
        if not message.isprintable():
            record.msg, record.args = visible(message), ()
        return True


def keep_log_visible(name: str) -> None:
    """Escape what is logged under a name, once however often this is called."""
    logger = logging.getLogger(name)
    if not any(isinstance(found, VisibleNames) for found in logger.filters):
        logger.addFilter(VisibleNames())
