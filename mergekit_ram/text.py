"""Text for terminals, logs and markdown: names escaped, errors as one line, the log hushed.

A model or a tensor may be called anything. Whatever would move a cursor, colour a terminal, hide
text or end a line is written as an escape before it is shown.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

LOG = logging.getLogger("mergekit_ram")

NAMED = 3
"""Names that a message lists."""

LONGEST_REASON = 400
"""Characters of another library's message that are passed on."""

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


def one_line(error: BaseException) -> str:
    """The message of an exception of another library, as one line that is never empty.

    >>> one_line(ValueError("no\\n such  thing"))
    'no such thing'
    >>> one_line(KeyError("lm_head"))
    "KeyError 'lm_head'"
    """
    text = " ".join(str(error).split())
    if len(text) > LONGEST_REASON:
        text = text[:LONGEST_REASON].rstrip() + " …"
    # A bare key or nothing at all is no sentence; the kind of error makes one of it.
    if not text or isinstance(error, LookupError | TypeError | AttributeError):
        return f"{type(error).__name__} {text}".rstrip()
    return text


_left_bars: set[tuple[int, float]] = set()


def leave_bars() -> None:
    """End the line in which a bar of tqdm is being drawn on the standard error."""
    bars = getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ())
    drawn = {(id(bar), bar.last_print_t) for bar in [*bars] if not bar.disable and bar.pos == 0}
    if drawn - _left_bars:
        print(file=sys.stderr)
        _left_bars.update(drawn)


def _escape(record: logging.LogRecord) -> bool:
    """Make a record of the log one line that can be seen whole, before it is formatted."""
    leave_bars()
    message = record.getMessage()
    if not message.isprintable():
        record.msg, record.args = visible(message), ()
    return True


def keep_log_visible() -> None:
    """Escape what this package logs; calling it again changes nothing."""
    LOG.addFilter(_escape)


def say(text: str) -> None:
    """Log a line at INFO that is shown wherever warnings are, with ``-v`` or without."""
    if LOG.isEnabledFor(logging.WARNING):
        LOG.handle(LOG.makeRecord(LOG.name, logging.INFO, __file__, 0, text, (), None))


@contextmanager
def hushed(is_said: Callable[[logging.LogRecord], bool] = lambda record: False) -> Iterator[None]:
    """Log nothing but the records of which ``is_said`` says so, in a step that is repeated."""

    def filtered(record: logging.LogRecord) -> bool:
        # One of its own for every block, since the log keeps the same one once.
        return is_said(record)

    LOG.filters.insert(0, filtered)
    try:
        yield
    finally:
        LOG.removeFilter(filtered)


def some(names: Sequence[str]) -> str:
    """The first names of a list, and the number of the others.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
