"""Tables of what was measured: documents a second beside PyTorch's, and what each kernel takes."""

from __future__ import annotations

from typing import Tuple

from peaks import shown

# a cell: mode, encoder, sizes; and the documents of the batch, which both sides have to have in common
Key = Tuple[str, str, str, int]


def tables(machine: dict, rows: list[dict]) -> list[str]:
    """All tables of a report, by lines; none where nothing was measured."""
    ours, theirs = found(rows)
    lines = rates(machine.get("rates", {})) + speeds(ours, theirs)
    for mode in ("train", "infer"):
        lines += kernels(mode, {key: bench for key, bench in ours.items() if key[0] == mode})
    return lines


def found(rows: list[dict]) -> tuple[dict[Key, dict], dict[Key, dict]]:
    """What bench found, and PyTorch's fastest."""
    ours: dict[Key, dict] = {}
    theirs: dict[Key, dict] = {}
    for row in rows:
        cell = tuple(row["name"].split()[1:4])
        if "bench" in row:
            ours[(*cell, row["bench"]["docs"])] = row["bench"]
        for peer in row.get("peers", []):
            key = (*cell, peer["docs"])
            if key not in theirs or peer["docs_per_s"] > theirs[key]["docs_per_s"]:
                theirs[key] = peer
    return ours, theirs


def rates(measured: dict) -> list[str]:
    if not measured:
        return []
    return ["", "rates of a product of matrices and of a copy"] + [f"{name:10} {shown(of)}" for name, of in measured.items()]


def speeds(ours: dict[Key, dict], theirs: dict[Key, dict]) -> list[str]:
    """Documents a second."""
    if not ours and not theirs:
        return []
    lines = ["", "documents a second; of setrank: how far rounds are apart, the share of the floor, its P in TFLOP/s"]
    lines += ["and BW in GB/s, launches a step; of PyTorch: the fastest variant on the same batch"]
    head = f"{'cell':20} {'documents':>9} {'setrank':>11} {'spread':>7} {'floor':>7} {'P':>8} {'BW':>8} {'launches':>8}"
    lines.append(f"{head} {'PyTorch':>11} {'ratio':>6}  variant")
    for key in sorted({*ours, *theirs}, key=order):
        line = f"{' '.join(key[:3]):20} {key[3]:9}"
        bench, peer = ours.get(key), theirs.get(key)
        line += of_bench(bench) if bench else " " * 55
        if peer:
            ratio = f"{bench['docs_per_s'] / peer['docs_per_s']:6.2f}" if bench else " " * 6
            line += f" {peer['docs_per_s']:11,.0f} {ratio}  {peer['variant']}"
        lines.append(line.rstrip())
    return lines


def order(key: Key) -> tuple:
    """Training first, and the plainer encoder."""
    return key[0] != "train", key[1] != "msab", *key[2:]


def of_bench(bench: dict) -> str:
    """The columns of one report of bench."""
    gpu, peak = bench["gpu"], bench["peak_gflops"]
    shares = f"{percent(bench['spread'])} {percent(gpu['share_of_floor'])}"
    product = "unknown" if peak is None else short(peak / 1e3)
    copy = short(gpu["copy_bytes_per_s"] / 1e9)
    return f" {bench['docs_per_s']:11,.0f} {shares} {product:>8} {copy:>8} {gpu['launches_per_step']:8.1f}"


def short(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def percent(share: float | None) -> str:
    return f"{'unknown':>7}" if share is None else f"{100 * share:5.1f} %"


def kernels(mode: str, ours: dict[Key, dict]) -> list[str]:
    """What each kernel takes of a step of the largest batch, a column a cell."""
    columns: dict[str, dict] = {}
    for (_, encoder, sizes, _), bench in sorted(ours.items(), key=lambda item: order(item[0])):
        columns[f"{encoder} {sizes}"] = bench["gpu"]  # the largest comes last
    if not columns:
        return []
    taken: dict[str, dict[str, float]] = {}
    for column, gpu in columns.items():
        for kernel in gpu["kernels"]:
            taken.setdefault(kernel["kernel"], {})[column] = kernel["seconds"]
    by_time = sorted(taken, key=lambda name: -sum(taken[name].values()))
    rows = {name: taken[name] for name in by_time}
    rows["between kernels"] = {column: gpu["between_kernels_s"] for column, gpu in columns.items()}
    rows["all of the step"] = {column: gpu["profiled_step_s"] for column, gpu in columns.items()}
    lines = ["", f"{mode}: ms of a step and share of it, launches timed one by one, largest batch"]
    lines.append(f"{'':34}" + "".join(f"{column:>18}" for column in columns))
    for name, of in rows.items():
        cells = (timed(of.get(column), gpu["profiled_step_s"]) for column, gpu in columns.items())
        lines.append(f"{name:34}{''.join(cells)}".rstrip())
    return lines


def timed(seconds: float | None, step: float) -> str:
    return " " * 18 if seconds is None else f"{1e3 * seconds:10.4g}{percent(seconds / step):>8}"
