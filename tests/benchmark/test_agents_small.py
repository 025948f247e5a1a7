"""The small scale of the benchmark on agents: its tasks, and questions to what it found."""

from __future__ import annotations

import pytest
from tasks import heldout_prompts

from benchmarks.agents.findings import small
from benchmarks.agents.small.tasks import SMALL_TASKS


def test_a_difference_at_the_small_scale_is_paired_over_prompts():
    def row(tool: str, compute: str, recall: str) -> dict:
        bits = {"tool": tool, "compute": compute, "recall": recall}
        return {"tasks": {task: {"right": right} for task, right in bits.items()}}

    found = {"merges": {"RAM": row("11", "10", "11"), "TIES": row("10", "10", "01")}}
    measured = small.difference(found, "RAM", "TIES")
    # Of six prompts two more are right: differences 0, 1, 0, 0, 1, 0.
    assert measured.mean == pytest.approx(2 / 6)
    assert measured.standard_error == pytest.approx((4 / 15) ** 0.5 / 6**0.5)


def test_the_best_baseline_of_the_small_scale_is_not_ours_and_decided_on_validation_prompts():
    found = {
        "merges": dict.fromkeys(("TIES", "RAM", "sum of task vectors", "TIES, tuned")),
        "validation": {"TIES": 0.5, "RAM": 0.9, "sum of task vectors": 0.6, "TIES, tuned": 0.7},
    }
    assert small.best_baseline(found, "not tuned") == "sum of task vectors"
    assert small.best_baseline(found, "tuned or not") == "TIES, tuned"


@pytest.mark.parametrize(
    ("task", "prompt", "right", "wrong"),
    [
        (
            "tool",
            "Tools: set_alarm(hour, minute), send_money(name, amount).\n"
            "Request: Send 30 euros to Anna.<|im_end|>",
            '{"tool": "send_money", "arguments": {"name": "Anna", "amount": "30"}}',
            '{"tool": "send_money", "arguments": {"name": "Anna", "amount": "31"}}',
        ),
        ("compute", "Compute 7 + 8. Answer with the number only.", " 15", "16"),
        ("compute", "Compute 7 - 8. Answer with the number only.", "-1", "1"),
        (
            "recall",
            "The code of Anna is 1234. The code of Emre is 9.\nWhat is the code of Anna? Answer",
            "1234",
            "9",
        ),
    ],
)
def test_the_small_tasks_know_a_right_answer_from_a_wrong_one(task, prompt, right, wrong):
    assert SMALL_TASKS[task].is_right(prompt, right)
    assert not SMALL_TASKS[task].is_right(prompt, wrong)


@pytest.mark.parametrize("task", SMALL_TASKS)
def test_every_small_task_has_enough_prompts_and_can_answer_them(task):
    prompts = heldout_prompts(SMALL_TASKS[task], 1000)
    assert len(set(prompts)) == 1000
    assert all(SMALL_TASKS[task].is_right(p, SMALL_TASKS[task].solve(p)) for p in prompts)
