"""What the kernels should cost on GPUs, from arithmetic alone: no GPU has run them yet.

    python -m benchmarks.roofline

A kernel takes at least its operations over the card's rate, and its bytes over the card's bandwidth: the larger is its
roofline. EFFICIENCY says which part of these peaks is assumed to be reached.
"""

from __future__ import annotations

from dataclasses import dataclass

EFFICIENCY = 0.5
"""Part of a peak that a kernel, or a plain training step in float32, is assumed to reach."""
PLAIN = 0.4
"""Part of the bfloat16 peak that a plain training step is assumed to reach."""


@dataclass(frozen=True)
class Card:
    """Peaks of a card, from its maker's data sheet.

    Args:
        bandwidth: bytes a second.
        single, double, half: operations a second in float32, float64, and bfloat16 on tensor cores.
        integer: integer operations a second: processors × lanes × clock.
    """

    name: str
    bandwidth: float
    single: float
    double: float
    half: float
    integer: float


CARDS = (
    Card("A100", 1.555e12, 19.5e12, 9.7e12, 312e12, 108 * 64 * 1.41e9),
    Card("H100", 3.35e12, 66.9e12, 33.5e12, 989e12, 132 * 64 * 1.83e9),
    Card("MI300X", 5.3e12, 81.7e12, 81.7e12, 1307e12, 304 * 64 * 2.1e9),
)

CHACHA = (20 * 4 * 12 + 16) / 8
"""Integer operations of ChaCha20 for a coordinate: a block of 20 rounds of 4 quarter rounds serves eight."""
TENT = 12
"""Those that make a point of two words."""
BOXES = 2 * (8 * CHACHA + 100) / 178
"""Those of two trials of a box, for one coordinate in 178."""


@dataclass(frozen=True)
class Work:
    """Operations of each kind, and bytes."""

    integer: float = 0.0
    single: float = 0.0
    double: float = 0.0
    bytes: float = 0.0

    def seconds(self, card: Card) -> float:
        """The roofline at EFFICIENCY."""
        times = (
            self.integer / card.integer,
            self.single / card.single,
            self.double / card.double,
            self.bytes / card.bandwidth,
        )
        return max(times) / EFFICIENCY


KERNELS = {
    "noise: tents and boxes": (1e9, Work(integer=CHACHA + TENT + BOXES, bytes=4)),
    "noise: round, add, scale": (1e9, Work(double=4, bytes=16)),
    "row_squares": (1e9, Work(double=2, bytes=4)),
    "weighted_columns": (1e9, Work(double=2, bytes=4)),
    "norm_rows": (1e9, Work(single=4, double=2, bytes=8)),
    "gram_tiles, 1024 × (768 + 3072)": (64, Work(single=1024**2 * (768 + 3072), bytes=4 * 1024 * 3840)),
    "formed_tiles, 1024 × 768 × 3072": (64, Work(single=2 * 1024 * 768 * 3072, bytes=4 * 1024 * 3840)),
    "run_products, 1024 × 768 × 3072": (64, Work(single=2 * 1024 * 768 * 3072, bytes=4 * 1024 * 3840)),
}
"""How many units of work are timed (numbers, or samples), and the work of one."""


@dataclass(frozen=True)
class Training:
    """A step.

    Args:
        trained: parameters that are trained.
        forward: operations of a forward; a backward takes as many for inputs, and for trained weights `products`.
        products: operations of the sum over all positions of b aᵀ, for trained weights.
        norms: operations of all Gram or formed norms, whichever is less.
    """

    name: str
    trained: float
    forward: float
    products: float
    norms: float

    def plain(self, rate: float) -> float:
        """Seconds of an ordinary step at a rate of operations."""
        return (2 * self.forward + self.products) / rate

    def private(self, card: Card, rate: float) -> float:
        """Seconds of a private step: weights' gradients are replaced by norms, clipped sums and noise."""
        own = Work(single=self.norms + self.products).seconds(card)
        noise = sum(
            Work(
                self.trained * work.integer,
                self.trained * work.single,
                self.trained * work.double,
                self.trained * work.bytes,
            ).seconds(card)
            for name, (_, work) in KERNELS.items()
            if name.startswith("noise")
        )
        return 2 * self.forward / rate + own + noise


def transformer(name: str, *, weights: float, trained: float, tokens: float) -> Training:
    """A language model: two operations for each weight and token; norms as formed ones."""
    return Training(name, trained, 2 * weights * tokens, 2 * trained * tokens, 2 * trained * tokens)


TRAININGS = (
    # 4.1 billion multiplications an image; Gram or formed norms cost about what the products do.
    Training("ResNet-50, 256 images", 25.6e6, 256 * 8.2e9, 256 * 8.2e9, 256 * 8.2e9),
    transformer("GPT-2 small, 64 × 1024 tokens", weights=124e6, trained=124e6, tokens=65536),
    transformer("1B with LoRA of 10M, 32 × 512 tokens", weights=1e9, trained=1e7, tokens=16384),
)


def main() -> None:
    print(f"{'kernel':34}{'units':>8}" + "".join(f"{card.name + ' ms':>12}" for card in CARDS))
    for name, (count, work) in KERNELS.items():
        scaled = Work(count * work.integer, count * work.single, count * work.double, count * work.bytes)
        print(f"{name:34}{count:8.0e}" + "".join(f"{1e3 * scaled.seconds(card):12.2f}" for card in CARDS))
    print("\nstep: plain in bfloat16 ms, in float32 ms, private in float32 ms, its ratio to each")
    for training in TRAININGS:
        for card in CARDS:
            half, single = training.plain(PLAIN * card.half), training.plain(EFFICIENCY * card.single)
            private = training.private(card, EFFICIENCY * card.single)
            print(
                f"{training.name:38}{card.name:>8}{1e3 * half:10.0f}{1e3 * single:10.0f}{1e3 * private:10.0f}"
                f"{private / half:9.1f}{private / single:7.2f}"
            )


if __name__ == "__main__":
    main()
