"""The pages that are looked at, and what is written in them for plotly."""

from __future__ import annotations

import html
import json
import re
from itertools import chain
from typing import Any

import page_records as records
from page_records import Sketch

from mergekit_ram.record.schema import OverlapRecord
from mergekit_ram.show.page import panels, render_page

ALWAYS = {"density", "overlap-degree", "layers", "rescale-r", "rescale-alpha"}
INSPECTED = ALWAYS | {
    "pairs",
    "epsilon-density",
    "epsilon-unique-share",
    "epsilon-overlap-unique-ratio",
    "epsilon-rescale",
    "retained",
    "realised",
}

EIGHT = tuple(
    Sketch(f"team/agent-{n}-with-a-name-too-long-for-a-label", 0.02 * (n + 1), degree)
    for n, degree in enumerate([(0.0, *[10.0] * 7), *[(30.0 - n, *[10.0] * 7) for n in range(7)]])
)
"""The first has no unique parameter, so that its ρ is infinite."""

HOSTILE = (
    Sketch("<script>document.title='owned'</script>", 0.1, (50.0, 40.0, 10.0)),
    Sketch("</script><img src=x onerror=document.title='owned'>", 0.2, (50.0, 40.0, 10.0)),
    Sketch("a & b/<b>%{x}</b>", 0.3, (50.0, 40.0, 10.0)),
)

RECORDS = {
    "inspection": records.inspection(),
    "merge": records.merge(),
    "sampled": records.sampled(),
    "eight": records.inspection(EIGHT),
    "hostile": records.inspection(HOSTILE),
}


def plots(record: OverlapRecord) -> dict[str, dict[str, Any]]:
    """What plotly is told to draw, by figure."""
    found = chain.from_iterable(panels(record).values())
    return {panel.name: json.loads(json.dumps(panel.plot)) for panel in found}


def captions(record: OverlapRecord) -> dict[str, str]:
    found = re.findall(
        r'<figure id="(.*?)">.*?<figcaption>(.*?)</figcaption>', render_page(record), re.DOTALL
    )
    return {name: html.unescape(caption) for name, caption in found}
