"""The keys, defaults and checks of a checkpoint's config.json."""

DEFAULTS = {
    "format_version": 1,
    "num_features": None,  # required
    "hidden_size": 256,
    "num_heads": 8,
    "num_blocks": 6,
    "ffn_size": 1024,
    "encoder": "imsab",
    "num_inducing": 20,
    "input": "linear",
    "rbf_centers": 100,
    "qkv_relu": False,
    "inner_ffn": True,
    "dropout": 0.0,
    "layer_norm_eps": 1e-5,
    "ordinal": None,
    "top_k": None,
    "index_base": 1,
    "absent": "missing",
    "normalize": {"kind": "none"},
    "training": {},
}

ORDINAL_DEFAULTS = {
    "rankings": None,  # required
    "n_max": 500,
    "at": "input",
    "start": "sampled",
}

NORMALIZE_KEYS = {
    "kind",
    "center",
    "scale",
    "knots",
    "fill",
    "clip",
    "indicators",
    "within_set",
}

CHOICES = {
    "format_version": (1,),
    "encoder": ("msab", "imsab"),
    "input": ("linear", "rbf"),
    "absent": ("missing", "zero"),
}

ORDINAL_CHOICES = {
    "at": ("input", "every_block"),
    "start": ("sampled", "zero"),
}

NORMALIZE_KINDS = ("none", "minmax", "zscore", "log1p-minmax", "log1p-zscore", "quantile")

# columns for each feature
WITHIN_SET_KINDS = {"none": 0, "zscore": 1, "rank": 1, "both": 2}


def complete_config(config: dict) -> dict:
    """Return `config` with every absent key at its default; refuse unknown keys and values."""
    full = _fill("config", config, DEFAULTS, CHOICES)
    if full["ordinal"] is not None:
        full["ordinal"] = _fill("ordinal", full["ordinal"], ORDINAL_DEFAULTS, ORDINAL_CHOICES)
    if full["hidden_size"] % full["num_heads"] != 0:
        raise ValueError(
            f"hidden_size {full['hidden_size']} is not a multiple of num_heads {full['num_heads']}"
        )
    _check_normalize(full["normalize"], full["num_features"])
    if full["input"] == "rbf" and full["normalize"].get("within_set", "none") != "none":
        raise ValueError("input rbf needs features in [0, 1], which columns within the set are not")
    if full["input"] == "rbf" and not full["normalize"]["kind"].endswith("minmax"):
        raise ValueError(f"input rbf needs minmax features, not {full['normalize']['kind']!r}")
    return full


def input_width(config: dict) -> int:
    """F_in: raw features, one column for each missing-value indicator, columns within the set."""
    settings, num_features = config["normalize"], config["num_features"]
    within_set = WITHIN_SET_KINDS[settings.get("within_set", "none")]
    return num_features + sum(settings.get("indicators") or []) + within_set * num_features


def _fill(name: str, given: dict, defaults: dict, choices: dict) -> dict:
    unknown = sorted(set(given) - set(defaults))
    if unknown:
        raise ValueError(f"{name}: unknown keys {unknown}")
    full = {**defaults, **given}
    for key, values in choices.items():
        if full[key] not in values:
            raise ValueError(f"{name}: {key} is {full[key]!r}, expected one of {values}")
    for key in ("num_features", "rankings"):
        if key in full and full[key] is None:
            raise ValueError(f"{name}: {key} is required")
    return full


def _check_normalize(normalize: dict, num_features: int) -> None:
    unknown = sorted(set(normalize) - NORMALIZE_KEYS)
    if unknown:
        raise ValueError(f"normalize: unknown keys {unknown}")
    kind = normalize.get("kind")
    if kind not in NORMALIZE_KINDS:
        raise ValueError(f"normalize: kind is {kind!r}, expected one of {NORMALIZE_KINDS}")
    within_set = normalize.get("within_set", "none")
    if within_set not in WITHIN_SET_KINDS:
        raise ValueError(
            f"normalize: within_set is {within_set!r}, expected one of {tuple(WITHIN_SET_KINDS)}"
        )
    needed = {"none": (), "quantile": ("knots",)}.get(kind, ("center", "scale"))
    for key in ("center", "scale", "knots", "fill", "indicators"):
        values = normalize.get(key)
        if values is None:
            if key in needed:
                raise ValueError(f"normalize: kind {kind!r} needs {key}")
        elif len(values) != num_features:
            raise ValueError(
                f"normalize: {key} has {len(values)} values for {num_features} features"
            )
