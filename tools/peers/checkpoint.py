"""A checkpoint folder: float32 weights in model.safetensors beside config.json."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from config import complete_config
from setrank_torch import SetRank


def load_checkpoint(folder: str | Path) -> tuple[dict, SetRank]:
    """The complete config and the float32 model, in evaluation mode, of a folder."""
    folder = Path(folder)
    config = complete_config(json.loads((folder / "config.json").read_text()))
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if weight.dtype != torch.float32:
            raise ValueError(f"{name} is {weight.dtype}, expected float32")
    model = SetRank(config)
    model.load_state_dict(weights)
    return config, model.eval()


def save_checkpoint(folder: str | Path, config: dict, model: SetRank) -> None:
    """Write the model's weights as float32 and its config, every key spelt out."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: weight.detach().to(torch.float32).contiguous()
        for name, weight in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors")
    text = json.dumps(complete_config(config), indent=2)
    (folder / "config.json").write_text(text + "\n")
