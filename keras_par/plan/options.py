"""The options of a strategy, said once for constructors, files and steps: their names, defaults and values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from keras_par.plan.layout import compiled

Reduction = Literal["mean", "sum"]
CustomLoss = Literal["auto", "mean", "sum"]
Compression: TypeAlias = Literal["fp16", "bf16"] | None
Remainder = Literal["exact", "wrap", "drop"]
ReduceBy = Literal["auto", "engine", "horovod", "shared_memory"]
Zero = Literal[0, 1, 2, 3]
OF_A_HOST = "host"
Search = Literal["dynamic", "recursive", "propagation", "exact"]


@dataclass(frozen=True)
class Options:
    """How a strategy reduces gradients, whether it starts from rank 0's state, and what it does with odd rows.

    What each means is said by `kp.DataParallel`.

    Args:
        fusion_mb: in megabytes.
        propagate: for `kp.ModelParallel` alone.

    Raises:
        ValueError: an option has no such value, or two exclude each other.
    """

    reduction: Reduction = "mean"
    fusion_mb: float = 64.0
    compression: Compression = None
    broadcast_variables: bool = True
    remainder: Remainder = "exact"
    custom_loss: CustomLoss = "auto"
    reduce_by: ReduceBy = "auto"
    propagate: bool = False
    sync_batch_norm: bool = True
    recompute: Sequence[str] = ()
    zero: Zero = 0
    zero_min_kb: float = 64.0
    zero_ranks: int | str | None = None

    def __post_init__(self):
        require_patterns(self.recompute)
        object.__setattr__(self, "recompute", tuple(self.recompute))
        require_megabytes(self.fusion_mb)
        for name in VALUES:
            require(name, getattr(self, name))
        if not self.zero_min_kb >= 0:
            raise ValueError(f"keras-par: zero_min_kb={self.zero_min_kb!r} must be a number of kilobytes, 0 or more.")
        if not (self.zero_ranks is None or is_ranks(self.zero_ranks)):
            raise ValueError(
                f"keras-par: zero_ranks={self.zero_ranks!r} is unknown, use a number of ranks, '{OF_A_HOST}', or None."
            )


def is_ranks(value: Any) -> bool:
    """True for what `zero_ranks` may say."""
    return value == OF_A_HOST or (isinstance(value, int) and not isinstance(value, bool) and value > 0)


def values_of(hint: Any) -> tuple:
    """What a value of this type may be, () where that cannot be listed."""
    if hint is bool:
        return (True, False)
    if get_origin(hint) is Sequence:
        return ()
    parts = get_args(hint)
    if type(None) in parts:
        return next(((None, *found) for found in map(values_of, parts) if found), ())
    return parts


VALUES = {name: values_of(hint) for name, hint in get_type_hints(Options).items() if values_of(hint)}


def require(name: str, value: Any) -> None:
    """Raises ValueError if an option cannot have this value."""
    if not has_value(VALUES[name], value):
        raise ValueError(f"keras-par: {name}={value!r} is unknown, use {one_of(VALUES[name])}.")


def has_value(values: Sequence[Any], value: Any) -> bool:
    """True if a value is one of these; 1 is not True."""
    return any(value is known or (value == known and isinstance(value, str)) for known in values)


def one_of(values: Sequence[Any]) -> str:
    """The values as a sentence lists them."""
    *first, last = map(repr, values)
    return f"{', '.join(first)} or {last}"


def require_patterns(patterns: Any) -> None:
    """Raises ValueError if these are not patterns in a tuple or a list."""
    if not isinstance(patterns, (tuple, list)) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(
            f"keras-par: recompute={patterns!r} is no tuple of patterns: give the names of layers, as in ('block_.*',)."
        )
    for pattern in patterns:
        compiled(pattern)


def require_megabytes(fusion_mb: float) -> None:
    """Raises ValueError if a bucket cannot have this size."""
    if not fusion_mb > 0:
        raise ValueError(f"keras-par: fusion_mb={fusion_mb!r} must be a positive number of megabytes.")
