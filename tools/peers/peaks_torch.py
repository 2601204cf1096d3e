"""Print what PyTorch reaches on the GPU in a product of two large matrices and in a large copy."""

import json
import sys

import torch

from bench_torch import copy_gbytes, peak_gflops


def main() -> int:
    if not torch.cuda.is_available():
        print("error: PyTorch sees no GPU", file=sys.stderr)
        return 1
    print(json.dumps({"peak_gflops": peak_gflops("cuda"), "copy_gbytes": copy_gbytes()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
