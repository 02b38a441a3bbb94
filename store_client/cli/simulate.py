"""`moonpool simulate`: large clusters on paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moonpool.store_client.cli.options import AsJson

if TYPE_CHECKING:
    from moonpool.benchmarks.simulate.experiments import Row

COLUMNS = (
    "engines",
    "phase",
    "req/s",
    "hit of",
    "match ms",
    "TTFT s",
    "master",
    "needs",
    "card",
    "GPU",
    "limit",
)
NOTES = """hit of: blocks not computed, of those that endless memory would have saved. match, TTFT: median and 99th percentile.
master, card, GPU: how busy the busiest master and network card are, and the GPUs. needs: masters for 70 % load.
limit: the busiest of these, which gives way first."""


def simulate(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[EXPERIMENT]...", help="Any of routing, scale, storm; all of them by default."
        ),
    ] = None,
    engines: Annotated[
        str, typer.Option(help="Cluster sizes for scale and storm, by commas.")
    ] = "10,100,1000",
    masters: Annotated[int, typer.Option(min=1, help="Masters that share the shards.")] = 1,
    shards: Annotated[int, typer.Option(min=1, help="Shards of the index.")] = 16,
    seconds: Annotated[float, typer.Option(min=1, help="Simulated seconds of each stretch.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Another one, other sessions.")] = 0,
    routing: Annotated[
        str,
        typer.Option(help="Of requests in scale and storm: round_robin, or sticky (a session's own engine)."),
    ] = "round_robin",
    as_json: AsJson = False,
) -> None:
    """Simulate clusters of 10 to 10,000 engines: the master's real cores, a cost model of the network."""
    from moonpool.benchmarks.simulate.costs import calibrate
    from moonpool.benchmarks.simulate.experiments import EXPERIMENTS, Plan
    from moonpool.benchmarks.simulate.experiments import as_json as document
    from moonpool.benchmarks.simulate.world import ROUTINGS
    from moonpool.schemas.errors import InvalidParams
    from moonpool.store_client.cli.options import numbers
    from moonpool.store_client.cli.output import print_json, print_table, say

    names = experiments or list(EXPERIMENTS)
    for name in names:
        if name not in EXPERIMENTS:
            raise InvalidParams(field="EXPERIMENT", value=name, allowed=", ".join(EXPERIMENTS))
    if routing not in ROUTINGS:
        raise InvalidParams(field="--routing", value=routing, allowed=", ".join(ROUTINGS))
    plan = Plan(numbers("--engines", engines), masters, shards, seconds, seed, routing)
    say("measuring what the master's work costs on this machine")
    costs = calibrate()
    rows: list[Row] = []
    for name in names:
        for row in EXPERIMENTS[name](costs, plan):
            say(f"{name}: {row.engines:,} engines, {row.phase}: hit ratio {row.hit_ratio:.3f}")
            rows.append(row)
    if as_json:
        print_json(document(costs, rows))
        return
    for name in names:
        print_table(name, COLUMNS, [_cells(row) for row in rows if row.experiment == name])
    say(NOTES)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        f"{row.engines:,}",
        row.phase,
        f"{row.requests_per_s:,.0f}",
        f"{row.hit_ratio:.3f} {row.ceiling:.3f}",
        f"{row.match_p50_ms:.1f} {row.match_p99_ms:.1f}",
        f"{row.ttft_p50_ms / 1000:.1f} {row.ttft_p99_ms / 1000:.1f}",
        f"{row.master_load:.0%}",
        f"{row.masters_needed}",
        f"{row.egress_load:.0%}",
        f"{row.gpu_load:.0%}",
        row.bottleneck,
    )
