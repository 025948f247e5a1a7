"""Three tasks for a small language model: call a tool, compute, answer from a long context.

They mirror the paper's domains. Every prompt has one right answer, which follows from it, so that
the splits by checksum are those of the tiny tasks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

NAMES = ("Anna", "Boris", "Chen", "Dalia", "Emre", "Fatou", "Goran", "Hana", "Ines", "Jonas")
CITIES = ("Lima", "Oslo", "Perth", "Quito", "Rome", "Seoul", "Tunis", "Vienna")
LANGUAGES = ("Arabic", "Dutch", "French", "Hindi", "Korean", "Polish", "Spanish", "Turkish")
WORDS = ("apple", "bridge", "candle", "dragon", "engine", "forest", "garden", "harbor")

FORM = 'Answer with JSON like {"tool": "play_song", "arguments": {"title": "Hello"}}.'
OFFERED_TOOLS = 2
PADDING = (
    "The office opens at nine.",
    "The printer on the second floor is out of paper.",
    "Lunch is served in the large room.",
    "The lift will be repaired next week.",
)
PADDING_SENTENCES = 4
PEOPLE_WITH_A_CODE = 3
LARGEST_TERM = 99
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@dataclass(frozen=True)
class Tool:
    """Something to call: its parameters, and a request that names their values in order."""

    name: str
    parameters: tuple[str, ...]
    request: str

    @property
    def signature(self) -> str:
        """As the prompt lists it."""
        return f"{self.name}({', '.join(self.parameters)})"

    def arguments_in(self, request: str) -> dict[str, str] | None:
        """The values in a request, or None if it asks for something else."""
        pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\w+)", re.escape(self.request))
        found = re.fullmatch(pattern, request)
        return found.groupdict() if found else None


TOOLS = (
    Tool("get_weather", ("city", "day"), "What will the weather be in {city} in {day} days?"),
    Tool("book_table", ("name", "people"), "Book a table for {people} under the name {name}."),
    Tool("send_money", ("name", "amount"), "Send {amount} euros to {name}."),
    Tool("set_alarm", ("hour", "minute"), "Wake me {minute} minutes past {hour}."),
    Tool("translate", ("word", "language"), "How do you say {word} in {language}?"),
    Tool("buy_tickets", ("city", "seats"), "I need {seats} seats on the train to {city}."),
)


@dataclass(frozen=True)
class SmallTask:
    """A kind of question; it has the two members that drawing and splitting prompts need."""

    name: str
    ask: Callable[[Random], str]
    solve: Callable[[str], str]
    max_tokens: int

    def draw_prompt(self, rng: Random) -> str:
        """A question as the model's chat format wants it."""
        return CHAT.format(self.ask(rng))

    def is_right(self, prompt: str, completion: str) -> bool:
        """Say whether a completion is exactly the right answer: the verifiable reward."""
        return completion.strip() == self.solve(prompt)


def _ask_for_tool(rng: Random) -> str:
    offered = rng.sample(TOOLS, OFFERED_TOOLS)
    request = rng.choice(offered).request.format(
        city=rng.choice(CITIES),
        day=rng.randint(2, 30),
        name=rng.choice(NAMES),
        people=rng.randint(2, 12),
        amount=rng.randint(5, 500),
        hour=rng.randint(1, 12),
        minute=rng.randint(1, 59),
        word=rng.choice(WORDS),
        language=rng.choice(LANGUAGES),
        seats=rng.randint(2, 60),
    )
    tools = ", ".join(tool.signature for tool in offered)
    return f"Tools: {tools}. {FORM}\nRequest: {request}"


def _call_tool(prompt: str) -> str:
    request = prompt.split("Request: ")[1].split("<|im_end|>")[0]
    for tool in TOOLS:
        if found := tool.arguments_in(request):
            arguments = {name: found[name] for name in tool.parameters}
            return json.dumps({"tool": tool.name, "arguments": arguments})
    raise ValueError(f"no tool was asked for: {request}")


def _ask_to_compute(rng: Random) -> str:
    a, b = (rng.randint(2, LARGEST_TERM) for _ in range(2))
    return f"Compute {a} {rng.choice('+-')} {b}. Answer with the number only."


def _compute(prompt: str) -> str:
    found = re.search(r"Compute (\d+) ([+-]) (\d+)", prompt)
    assert found is not None, prompt
    a, b = int(found[1]), int(found[3])
    return str(a + b if found[2] == "+" else a - b)


def _ask_for_code(rng: Random) -> str:
    people = rng.sample(NAMES, PEOPLE_WITH_A_CODE)
    sentences = [f"The code of {name} is {rng.randint(1000, 9999)}." for name in people]
    sentences += rng.choices(PADDING, k=PADDING_SENTENCES)
    rng.shuffle(sentences)
    return (
        f"{' '.join(sentences)}\nWhat is the code of {rng.choice(people)}? "
        "Answer with the number only."
    )


def _recall(prompt: str) -> str:
    asked = re.search(r"What is the code of (\w+)", prompt)
    assert asked is not None, prompt
    found = re.search(rf"The code of {asked[1]} is (\d+)", prompt)
    assert found is not None, prompt
    return found[1]


SMALL_TASKS = {
    task.name: task
    for task in (
        SmallTask("tool", _ask_for_tool, _call_tool, max_tokens=32),
        SmallTask("compute", _ask_to_compute, _compute, max_tokens=6),
        SmallTask("recall", _ask_for_code, _recall, max_tokens=6),
    )
}
