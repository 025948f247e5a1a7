"""The three verifiable tasks: prompts, right answers, the bad teacher's answers, and the split.

A prompt is one line such as ``add 047+385=``, ``reverse fbdac=`` or ``sort fbdac=``; the answer is
what follows the equals sign. Everything here is pure Python, so that training and evaluation
share one definition of what is right and of which prompts training may see.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

LETTERS = "abcdefghij"
SUM_DIGITS = 3
# The longest answer is a reversed or sorted word of seven letters.
MAX_ANSWER_LENGTH = 7

# A prompt's checksum modulo SPLIT_FOLDS decides once and for all which split it belongs to.
SPLIT_FOLDS = 10
TEST_FOLD = 0
VALIDATION_FOLD = 1

# The teacher that pretraining imitates errs rarely on the shortest inputs, mostly on the longest.
ERROR_RATE_SHORTEST = 0.1
ERROR_RATE_LONGEST = 0.9


@dataclass(frozen=True)
class Task:
    """A kind of puzzle: inputs of several sizes, the right answers, a bad habit of answering."""

    name: str
    sizes: range
    make_body: Callable[[Random, int], str]
    measure: Callable[[str], int]
    solve: Callable[[str], str]
    mistake: Callable[[str], str]

    def draw_prompt(self, rng: Random) -> str:
        """Draw a prompt of a uniformly chosen size, from any split."""
        return f"{self.name} {self.make_body(rng, rng.choice(self.sizes))}="


def _sum_body(rng: Random, digits: int) -> str:
    """A three-digit number and one of the remaining digits, in either order, below 1000 together.

    The shorter number is padded with zeros and the sum always has three digits, so that the
    digits of one column keep a fixed distance, which lets a small model learn soon to carry.
    """
    lengths = [SUM_DIGITS, digits - SUM_DIGITS]
    rng.shuffle(lengths)
    while True:
        numbers = [rng.randint(10 ** (n - 1), 10**n - 1) for n in lengths]
        if sum(numbers) < 10**SUM_DIGITS:
            return "+".join(str(number).zfill(SUM_DIGITS) for number in numbers)


def _sum_size(body: str) -> int:
    return sum(len(number.lstrip("0")) for number in body.split("+"))


def _word_body(rng: Random, length: int) -> str:
    return "".join(rng.choices(LETTERS, k=length))


def _add(body: str) -> str:
    left, right = body.split("+")
    return str(int(left) + int(right))


def _add_without_carries(body: str) -> str:
    """Add column by column and drop every carry: 047+385 becomes 322."""
    left, right = body.split("+")
    return "".join(str((int(a) + int(b)) % 10) for a, b in zip(left, right, strict=True))


def _copy(body: str) -> str:
    return body


def _reverse(body: str) -> str:
    return body[::-1]


def _sort(body: str) -> str:
    return "".join(sorted(body))


def _sort_descending(body: str) -> str:
    return _sort(body)[::-1]


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("add", range(4, 7), _sum_body, _sum_size, _add, _add_without_carries),
        Task("reverse", range(4, 8), _word_body, len, _reverse, _copy),
        Task("sort", range(4, 8), _word_body, len, _sort, _sort_descending),
    )
}


def _parse(prompt: str) -> tuple[Task, str]:
    name, body = prompt.removesuffix("=").split(" ")
    return TASKS[name], body


def right_answer(prompt: str) -> str:
    """Return the only answer that counts as right."""
    task, body = _parse(prompt)
    return task.solve(body)


def is_right(prompt: str, completion: str) -> bool:
    """Say whether a completion is exactly the right answer: the verifiable reward."""
    return completion == right_answer(prompt)


def teacher_answer(prompt: str, rng: Random) -> str:
    """Answer as the imperfect teacher does: the longer the input, the likelier the bad habit.

    Reinforcement learning needs a base that is sometimes right everywhere, so that there is
    something to reward; a teacher of two minds gives that, and a base stopped early does not.
    """
    task, body = _parse(prompt)
    hardness = (task.measure(body) - task.sizes[0]) / (task.sizes[-1] - task.sizes[0])
    error_rate = ERROR_RATE_SHORTEST + hardness * (ERROR_RATE_LONGEST - ERROR_RATE_SHORTEST)
    return task.mistake(body) if rng.random() < error_rate else task.solve(body)


def _fold(prompt: str) -> int:
    return zlib.crc32(prompt.encode()) % SPLIT_FOLDS


def training_prompts(task: Task, rng: Random) -> Iterator[str]:
    """Yield prompts without end, never one that is kept for validation or for the test."""
    while True:
        prompt = task.draw_prompt(rng)
        if _fold(prompt) not in (TEST_FOLD, VALIDATION_FOLD):
            yield prompt


def _distinct_prompts(task: Task, count: int, fold: int) -> list[str]:
    rng = Random(f"{task.name}/{fold}")
    found: dict[str, None] = {}
    while len(found) < count:
        prompt = task.draw_prompt(rng)
        if _fold(prompt) == fold:
            found[prompt] = None
    return list(found)


def validation_prompts(task: Task, count: int) -> list[str]:
    """Return the same ``count`` distinct prompts on every call, for deciding when to stop."""
    return _distinct_prompts(task, count, VALIDATION_FOLD)


def heldout_prompts(task: Task, count: int) -> list[str]:
    """Return the same ``count`` distinct prompts on every call, kept for the reported result."""
    return _distinct_prompts(task, count, TEST_FOLD)
