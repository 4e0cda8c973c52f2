"""Regular expressions: against ONNX Runtime's (RE2), and in linear time."""

from __future__ import annotations

import time

import numpy as np
import onnx
import onnxruntime
import pytest

from tilewright.errors import UnsupportedOperationError
from tilewright.graph.patterns import PatternError, compiled
from tilewright.importers.onnx import import_onnx

TEXTS = [
    "", "a", "b", "ab", "aB", "ba", "aab", "abab", "a\nb", "\n", "é", "É", "ſ", "K", "a-b", "1", "12", "a1_",
    " ", "日本", "(a)", "a.b", "_", "\t", "]", "^a", "aaaa", "x{,3}", "\\", "ABBA",
]  # fmt: skip
PATTERNS = [
    "", "a", "a|b", "a*b", "(a|b)*", "(?:ab)+", "(?P<name>a)b?", "(?<name>a)b?", "a{2}", "a{1,}b", "a{0,3}b{0}",
    "x{,3}", ".", "(?s).", "(?s:.).b", "[ab]+", "[^ab]", "[a-c1-3]+", "[^\\W]+", "\\w+", "\\W", "\\d+", "\\D+",
    "\\s", "\\S+", "[\\s\\d]", "[[:alpha:]]+", "[[:^alpha:]]+", "[[:word:]-]+", "\\pL+", "\\p{Lu}+", "\\PL",
    "\\p{^L}", "(?i)ab", "(?i)é", "(?i)s", "(?i)k", "(?i)[^a]", "(?i)[b-c]+", "(?i)\\w", "(?i)\\W", "(?i:a)b",
    "a(?i)b|c", "(?-i)a", "^a$", "(?m)a$\nb", "(?m)^a$(?s:.)^b$", "a^b", "$", "\\ba\\b", "\\ba\\B.", "\\Aa\\z",
    "a\\.b", "\\Qa.b\\E", "\\Q(a", "\\(a\\)", "\\x61", "\\x{65e5}本", "\\141", "\\t", "\\\\", "]", "[]a]+",
    "[^]a]", "[a-]+", "(a*)*", "(a*)+b", "(|a)+b", "a??b", "a+?b", "a*?", "a{1,2}?b", "(a|ab)(b|)", "()",
    "(())*a", "a**", "*a", "a{3,2}", "a{1001}", "(a", "a)", "[a", "(?=a)", "(?!a)b", "\\1", "\\Z", "(?<!a)",
    "[b-a]", "\\8",
]  # fmt: skip
REFUSED_THERE = {
    "a**", "*a", "a{3,2}", "a{1001}", "(a", "a)", "[a", "(?=a)", "(?!a)b", "\\1", "\\Z", "(?<!a)", "[b-a]",
    "\\8",
}  # fmt: skip


def model_of(pattern: str) -> onnx.ModelProto:
    node = onnx.helper.make_node("RegexFullMatch", ["x"], ["y"], pattern=pattern)
    values = [("x", onnx.TensorProto.STRING), ("y", onnx.TensorProto.BOOL)]
    x, y = (onnx.helper.make_tensor_value_info(name, kind, ["n"]) for name, kind in values)
    graph = onnx.helper.make_graph([node], "g", [x], [y])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)


def wanted(pattern: str, texts: list[str]) -> list[bool] | None:
    """What RE2 says; None where it refuses the pattern."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model_of(pattern).SerializeToString(), options)
    except Exception:
        return None
    found: list[bool] = session.run(None, {"x": np.array(texts, object)})[0].tolist()
    return found


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_mean_what_they_mean_in_re2(pattern: str) -> None:
    expected = wanted(pattern, TEXTS)
    assert (expected is None) == (pattern in REFUSED_THERE)
    if expected is None:
        with pytest.raises(PatternError):
            compiled(pattern)
        with pytest.raises(UnsupportedOperationError, match="the pattern"):
            import_onnx(model_of(pattern))
        return
    found = list(map(compiled(pattern).matches, TEXTS))
    assert found == expected, [text for text, a, b in zip(TEXTS, found, expected, strict=True) if a != b]


def drawn(rng: np.random.Generator, depth: int) -> str:
    """A random pattern."""
    kind = rng.integers(0, 7 if depth else 2)
    if kind < 2:
        return str(rng.choice(["a", "b", ".", "[ab]", "[^a]", "\\w", "\\b", "^", "$", "\\d", "B", "(?i)b", "\\W"]))
    parts = [drawn(rng, depth - 1) for _ in range(rng.integers(1, 4))]
    if kind < 4:
        return "".join(parts)
    if kind == 4:
        return f"(?:{'|'.join(parts)})"
    return f"(?:{parts[0]})" + str(rng.choice(["*", "+", "?", "{2}", "{1,3}", "{2,}"]))


def test_random_patterns(rng: np.random.Generator) -> None:
    texts = ["".join(rng.choice(list("abB1 \n"), rng.integers(0, 7))) for _ in range(40)]
    for _ in range(60):
        pattern = drawn(rng, 4)
        expected = wanted(pattern, texts)
        if expected is None:  # RE2 counts repetitions inside each other
            continue
        assert list(map(compiled(pattern).matches, texts)) == expected, pattern


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|aa)+b", "(a+)+b", "(?:a?){30}a{30}b", "(.*)(.*)(.*)(.*)b"])
def test_no_pattern_takes_more_than_linear_time(pattern: str) -> None:
    found = compiled(pattern)
    times = []
    for count in (500, 2000):
        began = time.process_time()
        assert not found.matches("a" * count)
        times.append(time.process_time() - began)
    assert times[1] < 16 * times[0] + 0.5  # four times the letters


@pytest.mark.parametrize("pattern", ["(a{1000}){1000}", "((){1000}){1000}" * 3, "(" * 500 + ")" * 500, "a" * 10_001])
def test_large_patterns_are_refused_or_small(pattern: str) -> None:
    try:
        compiled(pattern)
    except PatternError as error:
        assert "instructions" in str(error) or "deep" in str(error) or "letters" in str(error)
    else:
        assert compiled(pattern).matches("")
