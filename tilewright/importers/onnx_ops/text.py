"""Text operations: joining, splitting, changing, matching, counting. The host runs all but the counts."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float32, int64
from tilewright.graph.core import Value
from tilewright.graph.patterns import PatternError, compiled
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable

TABLE = RuleTable("Text")
rule = TABLE.rule
RUNTIME = RuleTable("ONNX Runtime: text", "com.microsoft::")
runtime_rule = RUNTIME.rule


@rule("StringConcat")
def concatenate(call: OnnxCall) -> Value:
    return call.op("text_concat", call[0], call[1])


@rule("StringSplit")
def split(call: OnnxCall) -> tuple[Value, ...]:
    """The pieces of each text, with empty ones up to the largest number of them, and their numbers."""
    attributes = {"delimiter": call.attribute("delimiter", ""), "most": call.attribute("maxsplit")}
    pieces = call.op("text_split", call[0], count=call.fresh("pieces"), **attributes)
    return pieces, call.op("text_split", call[0], gives="counts", **attributes)


@rule("StringNormalizer")
def normalize(call: OnnxCall) -> Value:
    """Texts without stop words, in another case. The locale has no say: letters have the cases that Unicode gives."""
    call.attribute("locale")
    case = call.choice("case_change_action", "NONE", "LOWER", "UPPER")
    sensitive = bool(call.attribute("is_case_sensitive", 0))
    stops = tuple(call.attribute("stopwords") or ())
    count = call.fresh("texts", 1)
    return call.op("text_normalize", call[0], stopwords=stops, case=case, sensitive=sensitive, count=count)


@rule("RegexFullMatch")
def full_match(call: OnnxCall) -> Value:
    """Whether texts as a whole are what a pattern in RE2's syntax describes."""
    pattern = call.attribute("pattern", "")
    try:
        compiled(pattern)
    except PatternError as error:
        raise Unsupported(str(error), "write the pattern in RE2's syntax, or match it outside of the model") from None
    return call.op("text_matches", call[0], pattern=pattern)


@runtime_rule("Tokenizer")
def tokenize(call: OnnxCall) -> Value:
    """The tokens of texts [C] or [N, C], one dimension more."""
    call.require_rank(call[0], 1, 2)
    pattern, separators = call.attribute("tokenexp", ""), tuple(call.attribute("separators") or ())
    if bool(pattern) == bool(separators):
        raise Invalid("it needs a pattern of tokens or separators, and not both")
    try:
        for text in (pattern, *separators):
            compiled(text)
    except PatternError as error:
        raise Unsupported(str(error), "write the pattern in RE2's syntax, or split outside of the model") from None
    least, filler = call.positive("mincharnum", 1), call.attribute("pad_value", "")
    marked, count = bool(call.attribute("mark", 0)), call.fresh("tokens")
    attributes = {"pattern": pattern, "separators": separators, "least": least, "marked": marked, "filler": filler}
    return call.op("text_tokens", call[0], count=count, **attributes)


@runtime_rule("MurmurHash3")
def murmur_hash(call: OnnxCall) -> Value:
    """32 bits of each element, a text or a number."""
    seed, positive = call.attribute("seed", 0), bool(call.attribute("positive", 1))
    return call.op("murmur_hash", call[0], seed=seed, positive=positive)


@rule("TfIdfVectorizer")
def count_sequences(call: OnnxCall) -> Value:
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
    skips, place = call.attribute("max_skip_count"), 0
    size = max(columns, default=-1) + 1
    sequences = []  # lengths, where in the pool and in the columns they begin, how many there are
    for length, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), start=1):
        count = (end - start) // length
        if start > end or end > len(pool) or place + count > len(columns):
            raise Invalid(f"the sequences of length {length} are not in the pool of {len(pool)} tokens")
        if least <= length <= most and count:
            sequences.append((length, start, place, count))
        place += count
    rows = call.cast(call.unsqueeze(x, 0) if x.rank == 1 else x, int64)
    attributes = {"pool": tuple(pool), "columns": tuple(columns), "sequences": tuple(sequences), "size": size}
    total = call.op("sequence_counts", rows, skips=skips, **attributes)
    given = call.attribute("weights")
    if mode != "TF":
        weights = np.ones(size)
        if given:
            weights[columns] = np.asarray(given)[: len(columns)]
        seen = call.cast(call.op("greater", total, 0.0), float32)
        scale = call.constant(weights.astype(np.float32), "weights")
        total = call.op("multiply", total if mode == "TFIDF" else seen, scale)
    return total if x.rank == 2 else call.reshape(total, (size,))
