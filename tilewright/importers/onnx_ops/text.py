"""Text: what joins, splits, changes, finds and counts it. The host does the work, but for the counts."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float32
from tilewright.graph.core import Value
from tilewright.graph.patterns import PatternError, compiled
from tilewright.importers.onnx_call import Call
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable

TABLE = RuleTable("Text")
rule = TABLE.rule


@rule("StringConcat")
def concatenate(call: Call) -> Value:
    return call.op("text_concat", call[0], call[1])


@rule("StringSplit")
def split(call: Call) -> tuple[Value, ...]:
    """The pieces of each text, with empty ones up to the largest number of them, and their numbers."""
    attributes = {"delimiter": call.attribute("delimiter", ""), "most": call.attribute("maxsplit")}
    pieces = call.op("text_split", call[0], count=call.fresh("pieces"), **attributes)
    return pieces, call.op("text_split", call[0], gives="counts", **attributes)


@rule("StringNormalizer")
def normalize(call: Call) -> Value:
    """Texts without stop words, in another case. The locale has no say: letters have the cases that Unicode gives."""
    call.attribute("locale")
    case = call.choice("case_change_action", "NONE", "LOWER", "UPPER")
    sensitive = bool(call.attribute("is_case_sensitive", 0))
    stops = tuple(call.attribute("stopwords") or ())
    count = call.fresh("texts", 1)
    return call.op("text_normalize", call[0], stopwords=stops, case=case, sensitive=sensitive, count=count)


@rule("RegexFullMatch")
def full_match(call: Call) -> Value:
    """Whether texts as a whole are what a pattern in RE2's syntax describes."""
    pattern = call.attribute("pattern", "")
    try:
        compiled(pattern)
    except PatternError as error:
        raise Unsupported(str(error), "write the pattern in RE2's syntax, or match it outside of the model") from None
    return call.op("text_matches", call[0], pattern=pattern)


@rule("TfIdfVectorizer")
def count_sequences(call: Call) -> Value:
    """How often each sequence of a pool occurs in rows of tokens [C] or [N, C], with gaps of equal length."""
    x = call[0]
    call.require_rank(x, 1, 2)
    pool, starts = call.attribute("pool_int64s"), list(call.attribute("ngram_counts"))
    texts = call.attribute("pool_strings")
    if not texts and not pool:
        raise Invalid("the pool of sequences is empty")
    if texts:  # tokens by their places in the pool; -1 is in no sequence
        places = {token: place for place, token in enumerate(texts)}
        x, pool = call.op("text_position", x, keys=tuple(texts)), [places[token] for token in texts]
    columns, mode = list(call.attribute("ngram_indexes")), call.choice("mode", "TF", "IDF", "TFIDF")
    least, most = call.positive("min_gram_length"), call.positive("max_gram_length")
    skips = call.attribute("max_skip_count")
    rows = call.unsqueeze(x, 0) if x.rank == 1 else x
    size = max(columns, default=-1) + 1
    weights = np.ones(size)
    given = call.attribute("weights")
    if given:
        weights[columns] = np.asarray(given)[: len(columns)]
    total: Value = call.full((rows.shape[0], size), 0.0, float32)
    place = 0
    for length, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), start=1):
        count = (end - start) // length
        if start > end or end > len(pool) or place + count > len(columns):
            raise Invalid(f"the sequences of length {length} are not in the pool of {len(pool)} tokens")
        if least <= length <= most and count:
            table = np.array(pool[start : start + count * length], np.int64).reshape(count, length)
            matrix = np.zeros((count, size), np.float32)
            np.add.at(matrix, (np.arange(count), columns[place : place + count]), 1)
            found = _occurrences(call, rows, table, skips if length > 1 else 0)
            if found is not None:
                total = call.op("add", total, call.op("matmul", found, call.constant(matrix, "columns")))
        place += count
    if mode != "TF":
        scale = call.constant(weights.astype(np.float32), "weights")
        seen = call.cast(call.op("greater", total, 0.0), float32)
        total = call.op("multiply", total if mode == "TFIDF" else seen, scale)
    return total if x.rank == 2 else call.reshape(total, (size,))


def _occurrences(call: Call, rows: Value, table: np.ndarray, skips: int) -> Value | None:
    """How often each row of `table` occurs in each of `rows` [N, C], with 0 to `skips` tokens between its own."""
    width, length = rows.shape[1], table.shape[1]
    if not isinstance(width, int):
        raise Unsupported(f"sequences in rows of {width} tokens", "fix the number of tokens")
    total: Value | None = None
    for step in range(1, skips + 2):
        count = width - step * (length - 1)
        if count < 1:
            break
        match: Value | None = None
        for index in range(length):
            part = call.unsqueeze(call.slice(rows, 1, index * step, index * step + count), 2)  # [N, count, 1]
            tokens = call.constant(table[:, index].astype(rows.dtype.numpy), "tokens")
            same = call.op("equal", part, tokens)
            match = same if match is None else call.op("logical_and", match, same)
        assert match is not None
        found = call.op("reduce_sum", call.cast(match, float32), axes=(1,))
        total = found if total is None else call.op("add", total, found)
    return total
