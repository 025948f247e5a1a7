"""Three tasks for a small language model: call a tool, compute, answer from a long context.

They mirror the paper's domains, and a program checks every answer. A prompt holds all that its
answer follows from, so that the splits by checksum are those of the tiny tasks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

NAMES = ("Anna", "Boris", "Chen", "Dalia", "Emre", "Fatou", "Goran", "Hana")
CITIES = ("Lima", "Oslo", "Perth", "Quito", "Rome", "Seoul", "Tunis", "Vienna")
TOOLS = "get_weather(city), book_table(name, people), send_money(name, amount)"
FORM = (
    'Answer with one line of JSON, like {"tool": "get_weather", "arguments": {"city": "Paris"}}, '
    "and nothing else."
)
REQUESTS = (
    ("What is the weather in {city}?", "get_weather", ("city",)),
    ("Book a table for {people} under the name {name}.", "book_table", ("name", "people")),
    ("Send {amount} euros to {name}.", "send_money", ("name", "amount")),
)
PADDING = (
    "The office opens at nine.",
    "The printer on the second floor is out of paper.",
    "Lunch is served in the large room.",
    "The lift will be repaired next week.",
)
PADDING_SENTENCES = 40
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@dataclass(frozen=True)
class SmallTask:
    """A kind of question; it has the two members that drawing and splitting prompts need."""

    name: str
    ask: Callable[[Random], str]
    is_right: Callable[[str, str], bool]
    max_tokens: int

    def draw_prompt(self, rng: Random) -> str:
        """A question as the model's chat format wants it."""
        return CHAT.format(self.ask(rng))


def _ask_for_tool(rng: Random) -> str:
    text, _, _ = rng.choice(REQUESTS)
    request = text.format(
        city=rng.choice(CITIES),
        name=rng.choice(NAMES),
        people=rng.randint(2, 12),
        amount=rng.randint(5, 500),
    )
    return f"You have these tools: {TOOLS}. {FORM}\nRequest: {request}"


def _is_right_call(prompt: str, completion: str) -> bool:
    """One JSON object with the tool's name and its arguments, values compared as text."""
    try:
        call = json.loads(completion)
        given = {name: str(value) for name, value in call["arguments"].items()}
        return (call["tool"], given) == _right_call(prompt)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _right_call(prompt: str) -> tuple[str, dict[str, str]]:
    request = prompt.split("Request: ")[1].split("<|im_end|>")[0]
    for text, tool, _ in REQUESTS:
        pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\w+)", re.escape(text))
        if found := re.fullmatch(pattern, request):
            return tool, found.groupdict()
    raise ValueError(f"no tool was asked for: {request}")


def _ask_to_compute(rng: Random) -> str:
    a, b, c = (rng.randint(2, 60) for _ in range(3))
    return f"Compute {a} + {b} - {c}. Answer with the number only."


def _is_right_result(prompt: str, completion: str) -> bool:
    a, b, c = map(int, re.search(r"Compute (\d+) \+ (\d+) - (\d+)", prompt).groups())  # type: ignore[union-attr]
    return completion.strip() == str(a + b - c)


def _ask_for_code(rng: Random) -> str:
    people = rng.sample(NAMES, 3)
    sentences = [f"The code of {name} is {rng.randint(1000, 9999)}." for name in people]
    sentences += rng.choices(PADDING, k=PADDING_SENTENCES)
    rng.shuffle(sentences)
    return (
        f"{' '.join(sentences)}\nWhat is the code of {rng.choice(people)}? "
        "Answer with the number only."
    )


def _is_right_code(prompt: str, completion: str) -> bool:
    name = re.search(r"What is the code of (\w+)", prompt).group(1)  # type: ignore[union-attr]
    code = re.search(rf"The code of {name} is (\d+)", prompt).group(1)  # type: ignore[union-attr]
    return completion.strip() == code


SMALL_TASKS = {
    task.name: task
    for task in (
        SmallTask("tool", _ask_for_tool, _is_right_call, max_tokens=48),
        SmallTask("compute", _ask_to_compute, _is_right_result, max_tokens=8),
        SmallTask("recall", _ask_for_code, _is_right_code, max_tokens=8),
    )
}
