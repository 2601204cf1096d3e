"""Score a LETOR file with a checkpoint, as one would write it in PyTorch for speed.

The reader is NumPy's, the model padded with fused attention, the batches of about 4096 documents. Prints one
score a line, batch by batch in file order; on stderr one JSON object with the seconds of each part.
"""

import time

START = time.perf_counter()

import argparse  # noqa: E402 (the clock starts before everything else is loaded)
import json  # noqa: E402
import sys  # noqa: E402
from collections.abc import Iterator  # noqa: E402

import torch  # noqa: E402

from checkpoint import load_checkpoint  # noqa: E402
from letor_fast import read_letor_fast  # noqa: E402
from normalize import normalize  # noqa: E402
from padded_torch import PaddedSetRank, make_layout  # noqa: E402
from score_file import add_init, read_rankings  # noqa: E402

BATCH_DOCUMENTS = 4096


def batches(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """First and last + 1 set of batches of about BATCH_DOCUMENTS documents."""
    first = 0
    for last in range(1, len(offsets)):
        if offsets[last] - offsets[first] >= BATCH_DOCUMENTS or last + 1 == len(offsets):
            yield first, last
            first = last


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--data", required=True, help="LETOR file")
    parser.add_argument("--threads", type=int, default=0, help="0 = one a core")
    parser.add_argument("--buckets", type=int, default=4, help="groups of sets padded alike in a batch")
    add_init(parser)
    args = parser.parse_args()
    if args.threads > 0:
        torch.set_num_threads(args.threads)
    seconds = {"import": time.perf_counter() - START}

    config, peer = load_checkpoint(args.model)
    model = PaddedSetRank(peer).eval()
    data = read_letor_fast(args.data, config["num_features"], config["index_base"], config["absent"])
    ordinals = read_rankings(tuple(args.init), data, config["top_k"])
    seconds["load"] = time.perf_counter() - START
    with torch.inference_mode():
        for first, last in batches(data.offsets):
            offsets = data.offsets[first : last + 1]
            raw = data.features[offsets[0] : offsets[-1]]
            here = [offset - offsets[0] for offset in offsets]
            features = torch.from_numpy(normalize(raw, config["normalize"], here)).float()
            layout = make_layout([b - a for a, b in zip(offsets[:-1], offsets[1:])], args.buckets)
            ranks = None
            if ordinals is not None:
                ranks = layout.pad(ordinals[:, offsets[0] : offsets[-1]].T)
            scores = model(layout.pad(features), layout.buckets, ranks)[layout.row_of_document]
            sys.stdout.write("".join(f"{score!r}\n" for score in scores.tolist()))
            sys.stdout.flush()
    seconds["all"] = time.perf_counter() - START
    print(json.dumps(seconds), file=sys.stderr)


if __name__ == "__main__":
    main()
