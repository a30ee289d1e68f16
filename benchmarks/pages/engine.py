"""The numpy engine: of docs/performance.md."""

from __future__ import annotations

from collections.abc import Sequence

from pages.section import Results, Section, judged, listed, span, table


def tables(found: Results) -> list[str]:
    rows = [
        (f"`{r['base']}`", r["work"], r["engine"], r["cpu_ms"], f"{r['tokens_per_s']:,}", f"{r['numpy_faster']:g}", f"{r['lowest']:g} to {r['highest']:g}")
        for r in found["rows"]
    ]  # fmt: skip
    limits = [
        (
            f"`{r['base']}`",
            r["work"],
            f"{r['gflops']:g} of {r['peak_gflops']:g}",
            f"{r['of_peak']:.0%}",
            f"{r['products']:.0%}",
            f"{r['products_of_peak']:.0%}",
            ", ".join(f"{name} {share:.0%}" for name, share in r["shares"].items()),
            f"{r['unaccounted']:.0%}",
        )
        for r in found["limits"]
    ]
    return [
        table(("base", "work", "engine", "CPU-ms", "tokens/s", "numpy is faster by", "lowest to highest round"), rows),
        (
            "Against the machine: GFLOP/s of the products, over all the time, by the peak of one thread (a product of large matrices, same run). "
            "Then the time of the parts by that of the whole, each part's calls repeated alone in the same process and rounds: the products, and "
            "what of the peak they reach alone; passes that have a name; what is left is other passes, allocations and the calls themselves."
        ),
        table(
            ("base", "work", "GFLOP/s", "of peak", "products", "of peak, alone", "other parts", "not accounted for"),
            limits,
        ),
    ]


def verdict(found: Results) -> str:
    pairs = dict.fromkeys((r["base"], r["work"]) for r in found["rows"])
    return "\n\n".join([listed([_judged(found, *pair) for pair in pairs]), limit(found["limits"])])


def _judged(found: Results, base: str, work: str) -> str:
    """By the minimal module as torch comes; its fastest variant, with our allocator's settings or compiled, is told as well."""
    rows = {r["engine"]: r for r in found["rows"] if (r["base"], r["work"]) == (base, work)}
    stock, target = rows["torch"], found["targets"][work]
    best = min((rows[name] for name in found["module"]), key=lambda r: r["numpy_faster"])
    told = judged(
        f"{work} on {base} against the minimal torch module, eager", stock["numpy_faster"], target, least=True, unit="×"
    )
    below = best["numpy_faster"] < target
    (parts,) = (r for r in found["limits"] if (r["base"], r["work"]) == (base, work))
    needed = (
        f", **below it**: {1 - best['numpy_faster'] / target:.0%} of the time would have to go, of which {1 - parts['products']:.0%} are not products"
    )  # fmt: skip
    return f"{told} Its fastest variant is “{best['engine']}”: {best['numpy_faster']:.3g}×{needed if below else ''}."


def limit(limits: Sequence[Results]) -> str:
    products, unaccounted = [r["products"] for r in limits], [r["unaccounted"] for r in limits]
    parts = {name: [r["shares"].get(name, 0) for r in limits] for r in limits for name in r["shares"]}
    largest = max(parts, key=lambda name: max(parts[name]))
    return (
        f"What limits it next. The products take {span(products)} of the time, at {span(r['products_of_peak'] for r in limits)} of the peak; "
        f"with nothing else to do the engine would be {span((1 / share for share in products), '.1f')} times as fast. The rest is passes over small "
        f"arrays and the calls that start them: of the named parts, {largest} take the most ({span(parts[largest])}), and {span(unaccounted)} have no "
        "name here. Norm weights folded into the matrices, and rotary factors into the norms, would save passes, but change the last bits of all "
        "results, and with them every recorded run. A compiled kernel for a whole layer would need a compiler or binary wheels."
    )


SECTION = Section(
    source="engine",
    title="The numpy engine",
    command=".venvs/bench/bin/python benchmarks/engine.py",
    what=(
        "Sampling (16 prompts × 8 samples, at most 16 tokens, the same draws in all engines) and one GRPO update on these samples, against "
        "torch with the same weights: a minimal module with the engine's own scheme (a prompt is read once for its samples, a cache "
        "written in place, finished rows leave the batch), the same compiled, and transformers' Qwen3 with its own cache and a loop by hand that "
        "does the same. One thread each, a process each. “Freed memory kept” is the minimal module with this package's settings of the "
        "allocator. Before anything is timed, all engines must give the same samples (over 98 %) and gradients (to a thousandth)."
    ),
    tables=tables,
    verdict=verdict,
)
