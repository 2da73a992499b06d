"""Write the Fashion-MNIST subset that ships inside the package.

    python scripts/make_embedded.py --data-dir DIR

DIR holds the canonical IDX files (also in torchvision's layout). The choice depends on the seed alone, so
anybody can make the same file again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from quietgrad.lab.data.examples import Examples, digests
from quietgrad.lab.data.idx import FASHION_MNIST
from quietgrad.lab.data.splitting import balanced_rows

SEED = 20_260_101
PER_CLASS = {"private": 1_200, "public": 20, "test": 200}
TARGET = Path(__file__).parents[1] / "src" / "quietgrad" / "lab" / "data" / "embedded" / "fashion_mnist.npz"


def choose(train: Examples, test: Examples) -> tuple[Examples, Examples, Examples]:
    """Class-balanced private, public and test examples without common content."""
    rng = np.random.default_rng(SEED)
    test_part = test.take(balanced_rows(test.labels, PER_CLASS["test"], rng))
    others = _without(train, test_part)
    public = others.take(balanced_rows(others.labels, PER_CLASS["public"], rng))
    others = _without(others, public)
    private = others.take(balanced_rows(others.labels, PER_CLASS["private"], rng))
    return private, public, test_part


def _without(examples: Examples, taken: Examples) -> Examples:
    """Leave out what has the content of the taken ones: all of it is public here."""
    known = set(digests(taken.inputs))
    rows = [row for row, digest in enumerate(digests(examples.inputs)) if digest not in known]
    return examples.take(np.array(rows, dtype=np.int64))


def main() -> None:
    """Read, choose, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=TARGET)
    arguments = parser.parse_args()
    folder = FASHION_MNIST.locate(arguments.data_dir)
    if folder is None:
        parser.error(f"no Fashion-MNIST in {arguments.data_dir}")
    source = FASHION_MNIST.read(folder)
    assert source.test is not None
    private, public, test = choose(source.train, source.test)
    np.savez_compressed(
        arguments.out,
        private_x=private.inputs,
        private_y=private.labels.astype(np.uint8),
        public_x=public.inputs,
        public_y=public.labels.astype(np.uint8),  # for the row "public only"; methods see random labels
        test_x=test.inputs,
        test_y=test.labels.astype(np.uint8),
    )
    print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
