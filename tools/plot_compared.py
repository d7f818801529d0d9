#!/usr/bin/env python3
"""Draws docs/images/ceph-cpu.svg, and prints the table of docs/benchmarks.md: Ceph, Atoll and a plain file.

The figures are those of the records of two matrices:

    tools/plot_compared.py records/ceph-short.jsonl records/ceph-objects-short.jsonl
"""

import argparse
import datetime
import json
import math
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "docs" / "images" / "ceph-cpu.svg"

RECORDS = (ROOT / "records" / "ceph-short.jsonl", ROOT / "records" / "ceph-objects-short.jsonl")
LOADS = {
    "depth 1: randwrite 4 KiB": "write 4 KiB, depth 1",
    "depth 32: randwrite 4 KiB": "write 4 KiB, depth 32",
    "depth 128: randwrite 4 KiB": "write 4 KiB, depth 128",
    "depth 1: randread 4 KiB": "read 4 KiB, depth 1",
    "depth 32: randread 4 KiB": "read 4 KiB, depth 32",
    "depth 128: randread 4 KiB": "read 4 KiB, depth 128",
    "depth 16: write 4 MiB": "write 4 MiB, depth 16",
    "depth 16: read 4 MiB": "read 4 MiB, depth 16",
    "16 at once: put 64 KiB": "PUT 64 KiB, 16 at once",
    "16 at once: get 64 KiB": "GET 64 KiB, 16 at once",
    "16 at once, few: put 4 MiB": "PUT 4 MiB, 16 at once",
    "16 at once, few: get 4 MiB": "GET 4 MiB, 16 at once",
}
MARKS = {"ceph": "ceph", "atoll-nbd": "nbd", "atoll": "atoll"}
COLUMNS = {
    "Atoll us/op": ("atoll", "all"),
    "Atoll's servers": ("atoll", "servers"),
    "Atoll, NBD": ("atoll-nbd", "all"),
    "Ceph us/op": ("ceph", "all"),
    "Ceph's servers": ("ceph", "servers"),
    "fio us/op": ("raw", "servers"),
    "Atoll op/s": ("atoll", "rate"),
    "NBD op/s": ("atoll-nbd", "rate"),
    "Ceph op/s": ("ceph", "rate"),
    "fio op/s": ("raw", "rate"),
}
LEFT, RIGHT, TOP, ROW_HEIGHT, WIDTH = 170, 60, 74, 28, 820
LEAST_US, MOST_US = 10, 100_000

STYLE = """
  .page { fill: #ffffff; }
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
  .title { font-size: 15px; font-weight: 600; }
  .note, .tick { font-size: 11px; fill: #59636e; }
  .ratio { font-weight: 600; }
  .grid { stroke: #d1d9e0; stroke-width: 1; }
  .span { stroke: #b4bdc7; stroke-width: 3; }
  .ceph { fill: #c4432b; } .atoll { fill: #1a7f64; } .nbd { fill: #6fb3a2; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; } text { fill: #e6edf3; } .note, .tick { fill: #9198a1; } .grid { stroke: #30363d; }
    .span { stroke: #4d5661; } .ceph { fill: #f0836b; } .atoll { fill: #4ac29a; } .nbd { fill: #2f7d68; }
  }
"""


def read_runs(path):
    """Returns the measurements of each (subject, load), the day of the record, and its number of runs."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    runs, day = {}, datetime.datetime.fromtimestamp(lines[0]["host"]["unix_s"], datetime.UTC).date().isoformat()
    for line in lines:
        if line["line"] == "run":
            runs.setdefault((line["subject"], line["load"]), []).append(line["measurement"])
    return runs, day, sum(map(len, runs.values()))


def read_records(paths=RECORDS):
    """Returns the medians of each (subject, load, kind) and the days of the records.

    Kinds are `servers` and `all` (CPU us per operation of servers, and with those of clients) and `rate`.
    """
    kinds = {
        "servers": lambda one: one["cpu_us_per_op"],
        "all": lambda one: one["cpu_us_per_op"] + one["client_cpu_us_per_op"],
        "rate": lambda one: one["iops"],
    }
    figures, days = {}, []
    for path in paths:
        runs, day, _ = read_runs(path)
        days.append(day)
        for (subject, load), measured in runs.items():
            for kind, figure_of in kinds.items():
                figures[subject, load, kind] = rounded(statistics.median(map(figure_of, measured)))
    return figures, sorted(set(days))


def rounded(figure):
    """Rounds as reports do: three digits below 100, whole numbers above."""
    return (
        float(math.floor(figure + 0.5))
        if figure >= 100
        else float(f"{figure:.1f}" if figure >= 10 else f"{figure:.2f}")
    )


def table(figures):
    """Returns the table of docs/benchmarks.md."""
    rows = [["", *COLUMNS], ["---"] * (1 + len(COLUMNS))]
    for load, label in LOADS.items():
        cells = (figures.get((subject, load, kind)) for subject, kind in COLUMNS.values())
        rows.append([label, *("-" if figure is None else f"{figure:,g}" for figure in cells)])
    return "".join(f"| {' | '.join(row)} |\n".replace("|  |", "| |") for row in rows)


def x_of(cpu_us):
    """Where a figure is on the logarithmic axis."""
    share = math.log(cpu_us / LEAST_US) / math.log(MOST_US / LEAST_US)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def tick_label(cpu_us):
    return f"{cpu_us:,} us" if cpu_us < 1000 else f"{cpu_us // 1000} ms"


def draw(figures, days):
    """Returns the SVG."""
    bottom = TOP + ROW_HEIGHT * len(LOADS)
    height = bottom + 64
    label = "CPU time of servers and clients per operation, Ceph and Atoll"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
        '<text class="title" x="16" y="24">CPU time of servers and clients per operation: Ceph Reef and Atoll</text>',
        '<circle class="ceph" cx="22" cy="44" r="6"/><text x="34" y="48">Ceph, encrypted on the wire</text>',
        '<circle class="atoll" cx="232" cy="44" r="6"/>',
        '<text x="244" y="48">Atoll, sealed at the edge and encrypted on the wire</text>',
        '<circle class="nbd" cx="562" cy="44" r="4"/><text x="574" y="48">its images by NBD</text>',
        f'<text class="note" x="{WIDTH - 8}" y="48" text-anchor="end">Ceph / Atoll</text>',
    ]
    for tick in (10, 100, 1_000, 10_000, 100_000):
        x = x_of(tick)
        out.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}"/>')
        out.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick_label(tick)}</text>')
    for row, (load, label) in enumerate(LOADS.items()):
        y = TOP + ROW_HEIGHT * row + ROW_HEIGHT / 2
        shown = {name: figures[name, load, "all"] for name in MARKS if (name, load, "all") in figures}
        ends = sorted(x_of(cpu_us) for cpu_us in shown.values())
        out.append(f'<text x="{LEFT - 12}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        out.append(f'<line class="span" x1="{ends[0]:.1f}" x2="{ends[-1]:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        for name, cpu_us in shown.items():
            radius = 4 if name == "atoll-nbd" else 6
            circle = f'<circle class="{MARKS[name]}" cx="{x_of(cpu_us):.1f}" cy="{y:.1f}" r="{radius}">'
            out.append(f"{circle}<title>{name}: {cpu_us:,.0f} us</title></circle>")
        ratio = shown["ceph"] / shown["atoll"]
        out.append(f'<text class="ratio" x="{WIDTH - 8}" y="{y + 4:.1f}" text-anchor="end">{ratio:.1f}</text>')
    notes = (
        "Three OSDs and three copies each, every write durable on all, on one disk in turns; medians of three rounds. "
        "Less is better; logarithmic.",
        f"{' and '.join(days)}, 2 virtual processors. atoll bench run ceph (and ceph-objects) --profile short",
    )
    for number, note in enumerate(notes):
        out.append(f'<text class="note" x="16" y="{bottom + 38 + 16 * number}">{note}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="*", default=RECORDS)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    figures, days = read_records(options.records)
    options.output.write_text(draw(figures, days))
    print(table(figures), end="")


if __name__ == "__main__":
    main()
