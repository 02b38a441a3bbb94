"""`moonpool replay`: request traces against the pool's eviction policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moonpool.store_client.cli.options import AsJson


def replay(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE...",
            help="A file in Mooncake's JSONL format, or a family to generate: agentic, prompts, chat, loops, phases.",
        ),
    ],
    capacity_blocks: Annotated[str, typer.Option(help="Pool sizes in blocks, by commas.")] = "5000,10000",
    policy: Annotated[
        str, typer.Option(help="Any of default, lru, s3fifo, optimum, by commas.")
    ] = "default,lru,s3fifo,optimum",
    nodes: Annotated[
        int, typer.Option(min=1, max=64, help="Nodes that share the pool's size (default and lru).")
    ] = 1,
    requests: Annotated[int, typer.Option(min=1, help="Requests to generate.")] = 4000,
    seed: Annotated[int, typer.Option(help="Another one, another generated trace.")] = 0,
    save: Annotated[Path | None, typer.Option(help="Write the (last) trace to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay request traces: prefix hit ratio in blocks, beside LRU, S3-FIFO and the clairvoyant optimum."""
    from moonpool.benchmarks.replay.families import FAMILIES, generate
    from moonpool.benchmarks.replay.plot import page
    from moonpool.benchmarks.replay.replay import Row
    from moonpool.benchmarks.replay.replay import as_json as document
    from moonpool.benchmarks.replay.replay import replay as run
    from moonpool.benchmarks.replay.trace import read_trace, write_trace
    from moonpool.schemas.errors import InvalidParams
    from moonpool.store_client.cli.options import check_writable, numbers
    from moonpool.store_client.cli.output import print_json, print_table, say

    check_writable("--html", html)
    check_writable("--save", save)
    capacities = numbers("--capacity-blocks", capacity_blocks)
    policies = [name.strip() for name in policy.split(",")]
    rows: list[Row] = []
    for name in traces:
        generated = name in FAMILIES
        if not generated and not Path(name).exists():
            raise InvalidParams(field="trace", value=name, allowed=f"a file, or one of {', '.join(FAMILIES)}")
        trace = generate(name, seed=seed, requests=requests) if generated else read_trace(Path(name))
        if save:
            write_trace(save, trace)
        for row in run(name if generated else Path(name).stem, trace, capacities, policies, nodes):
            say(f"{row.trace}, {row.capacity_blocks:,} blocks, {row.policy}: {row.prefix_hit_ratio:.4f}")
            rows.append(row)
    if html:
        html.write_text(page(rows))
    if as_json:
        print_json(document(rows))
        return
    ratios = {(row.trace, row.capacity_blocks, row.policy): f"{row.prefix_hit_ratio:.4f}" for row in rows}
    table = [
        (trace, f"{capacity:,}", *(ratios[trace, capacity, name] for name in policies))
        for trace, capacity in dict.fromkeys((row.trace, row.capacity_blocks) for row in rows)
    ]
    print_table("Prefix hit ratio in blocks", ("trace", "capacity", *policies), table)
