"""What agents and servers may write: JSON of every shape, deep, huge or broken, and text with everything in it that trips parsers."""

import json

from hypothesis import strategies as st

TEXTS = st.text(max_size=30) | st.sampled_from(
    ["", "\ud800", "\0", "\x1b[2J", "NaN", "null", "../../x", "<script>", "é" * 40, "x" * 3000, "9" * 5000, "{", '"', "\\", "\r\n"]
)  # fmt: skip
NUMBERS = (
    st.integers() | st.floats() | st.sampled_from([10**400, -(10**400), 2**63, 1e308, -0.0, float("nan"), float("inf")])
)
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS


def data(keys=TEXTS, *, leaves=12):
    """Any JSON value, its names mostly from `keys`."""
    return st.recursive(
        LEAVES,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys | TEXTS, inner, max_size=4),
        max_leaves=leaves,
    )


DEEP = st.sampled_from([300, 700, 900, 960, 990, 2000, 100_000]).flatmap(
    lambda n: st.sampled_from(["[" * n + "]" * n, '{"a":' * n + "1" + "}" * n, "[" * n])
)


def likely(known):
    """A mapping with these names, each with a value that fits or anything at all."""
    return st.fixed_dictionaries({}, optional={name: fits | data(leaves=4) for name, fits in known.items()})


def written(values):
    """JSON text of the values, sometimes cut off, with something after it, or nested past all reason."""
    whole = values.map(json.dumps)
    broken = st.tuples(whole, st.integers(0, 60)).map(lambda pair: pair[0][: -pair[1] or None])
    return whole | broken | st.tuples(whole, TEXTS).map("".join) | DEEP | TEXTS
