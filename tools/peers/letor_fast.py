"""LETOR text read as fast as NumPy can: all numbers of the file at once, then scattered into rows."""

from pathlib import Path

import numpy as np

from letor import MISSING_FROM, Dataset


def read_letor_fast(path: str | Path, num_features: int, index_base: int, absent: str) -> Dataset:
    """What `read_letor` gives, of a file without comments or blank lines and with whole numbers as query ids.

    It trusts the file: of these conditions it checks only that numbers and lines add up.
    """
    text = Path(path).read_bytes().replace(b"qid:", b"").replace(b"NULL", b"nan")
    raw = np.frombuffer(text, dtype=np.uint8)
    # Where each line's pairs end, counted by their colons.
    ends = np.flatnonzero(raw == ord("\n"))
    if len(raw) and raw[-1] != ord("\n"):
        ends = np.append(ends, len(raw))
    pairs = np.searchsorted(np.flatnonzero(raw == ord(":")), ends)
    numbers = np.fromstring(text.replace(b":", b" ").decode("ascii"), dtype=np.float64, sep=" ")
    lines = len(ends)
    if len(numbers) != 2 * (lines + (pairs[-1] if lines else 0)):
        raise ValueError(f"{path} is not plain LETOR text: {len(numbers)} numbers in {lines} lines")
    counts = np.diff(pairs, prepend=0)
    starts = 2 * (np.arange(lines) + pairs - counts)  # of each line's numbers
    heads = np.zeros(len(numbers) // 2, dtype=bool)
    heads[starts // 2] = True
    labels, queries = numbers[starts], numbers[starts + 1]
    columns = numbers[0::2][~heads].astype(np.int64) - index_base
    values = numbers[1::2][~heads]
    values[np.abs(values) >= MISSING_FROM] = np.nan
    features = np.full((lines, num_features), np.nan if absent == "missing" else 0, dtype=np.float32)
    features[np.repeat(np.arange(lines), counts), columns] = values
    offsets = [0, *(np.flatnonzero(np.diff(queries)) + 1).tolist(), lines]
    return Dataset(features, labels.astype(np.float32), offsets)
