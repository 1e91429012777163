from __future__ import annotations

import pickle
import time

import pytest
from memopt.compiler.plan.pattern_matcher import PatternMatcher, nearest_paths
from memopt.passes.matching import MatchTimeout, compile_pattern, fullmatch
from plan_models import BLOCK_PATHS

CATASTROPHE = "(a|a)*b"
LONG = "a" * 40 + "b.mlp" + "a" * 40


def test_the_whole_path_has_to_match() -> None:
    assert fullmatch(".*mlp", "mlp")
    assert fullmatch(".*mlp", "block.mlp")
    assert not fullmatch("mlp", "mlp.fc1")
    assert not fullmatch("mlp", "block.mlp")
    assert fullmatch(r"\p{L}+\.core", "attention.core")


def test_time_is_limited() -> None:
    start = time.perf_counter()
    with pytest.raises(MatchTimeout) as caught:
        fullmatch(CATASTROPHE, LONG, timeout=0.1)
    assert 0.05 < time.perf_counter() - start < 10
    assert str(caught.value) == f"matching '(a|a)*b' against {LONG!r} took more than 0.1 s"
    clone = pickle.loads(pickle.dumps(caught.value))
    assert (clone.pattern, clone.text, clone.timeout) == (CATASTROPHE, LONG, 0.1)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a", "missing ) at position 2"),
        ("*a", "nothing to repeat at position 0"),
        ("a" * 2001, "longer than 2000 characters"),
        ("((a{1000}){1000}){1000}", "counted repeats of more than 1000000 in all"),
        ("a{99999999999999999999}", "counted repeats of more than 1000000 in all"),
        ("(" * 900 + ")" * 900, "nested too deeply"),
        (r"\L<names>", "undefined named list at position 9"),
    ],
)
def test_patterns_that_cannot_be_compiled(pattern: str, reason: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ValueError, match=r".") as caught:
        compile_pattern(pattern)
    assert str(caught.value) == reason
    assert time.perf_counter() - start < 10


def test_matcher_gives_a_pattern_up_and_says_so() -> None:
    matcher = PatternMatcher(timeout=0.05)
    paths = ("ab", LONG, LONG + "a", LONG + "aa", LONG + "aaa")
    for _ in range(3):
        assert matcher.matched(CATASTROPHE, paths) == {"ab"}
    assert matcher.timed_out == {CATASTROPHE: [LONG, LONG + "a"]}
    assert matcher.given_up(CATASTROPHE)
    shown = f"{LONG[:40]}...{LONG[-40:]}"
    assert matcher.complaint(CATASTROPHE) == (
        f"matching the pattern took more than 0.05 s on '{shown}' and '{(LONG + 'a')[:40]}...{LONG[-39:]}a', which "
        f"counts as no match; it "
        "is given up after 2 timeouts, without trying 2 more paths and any operator"
    )
    assert matcher.matched(".*", paths) == set(paths)
    assert matcher.complaint(".*") == ""


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (".*mpl", ("mlp",)),
        (".*atention", ("attention", "attention.out", "attention.core")),
        (r"^atten?tion\.coer$", ("attention.core", "attention", "attention.out")),
        (r".*\.(fc1|fc3)", ("mlp.fc1", "mlp.fc2")),
        (r"mlp\.gelu", ("mlp",)),
        ("zzz", ("attention", "mlp")),
        (".*", ("attention", "mlp")),
    ],
)
def test_nearest_paths(pattern: str, expected: tuple[str, ...]) -> None:
    assert nearest_paths(pattern, BLOCK_PATHS) == expected


def test_nearest_paths_of_nothing() -> None:
    assert nearest_paths("mlp", ()) == ()
