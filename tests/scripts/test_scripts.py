"""Scripts without a guard, beside the same scripts on the plain DataLoader: what they deliver, and that they end well.

`make test` runs those that are known to matter and a random sample, whose seed is in every failure and at the end;
SCRIPTS_SEED=… runs it again. SCRIPTS=long runs all of them, SCRIPTS=long:SEED with the orders of that seed.
"""

from __future__ import annotations

import pytest

from .cases import Case, every, known, sample
from .comparison import differences, report
from .conftest import Scripts
from .seed import LONG, SEED, told

CASES = sorted({*known(SEED), *(every(SEED) if LONG else sample(SEED))})


@pytest.mark.parametrize("case", CASES, ids=[f"{case}-direct" if case.direct else str(case) for case in CASES])
def test_a_script_delivers_what_plain_torch_delivers(case: Case, scripts: Scripts) -> None:
    ended = scripts.ours(case).result()
    ours, wrong = report(ended)
    expected, wrong_plain = report(scripts.plain(case.setting).result())
    assert not wrong_plain, f"the plain script itself: {wrong_plain}"
    if ours:
        wrong += differences(case, ours, expected)
    assert not wrong, told(wrong, ended.script, ended.err)
