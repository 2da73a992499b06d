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
from quietgrad.lab.data.idx import IdxReader
from quietgrad.lab.data.splitting import balanced_rows, without_content

SEED = 20_260_101
PER_CLASS = {"private": 1_200, "public": 20, "test": 200}
TARGET = Path(__file__).parents[1] / "src" / "quietgrad" / "lab" / "embedded" / "fashion_mnist.npz"


def choose(train: Examples, test: Examples) -> tuple[Examples, Examples, Examples]:
    """Class-balanced private, public and test examples without common content."""
    rng = np.random.default_rng(SEED)
    test_part = test.take(balanced_rows(test.labels, PER_CLASS["test"], rng))
    pool = without_content(train, set(digests(test_part.inputs)))
    public = pool.take(balanced_rows(pool.labels, PER_CLASS["public"], rng))
    pool = without_content(pool, set(digests(public.inputs)))
    private = pool.take(balanced_rows(pool.labels, PER_CLASS["private"], rng))
    return private, public, test_part


def main() -> None:
    """Read, choose, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=TARGET)
    arguments = parser.parse_args()
    reader = IdxReader("fashion-mnist")
    folder = reader.locate(arguments.data_dir)
    if folder is None:
        parser.error(f"no Fashion-MNIST in {arguments.data_dir}")
    private, public, test = choose(*reader.read(folder))
    np.savez_compressed(
        arguments.out,
        private_x=private.inputs,
        private_y=private.labels.astype(np.uint8),
        public_x=public.inputs,  # its labels stay out: the public part is unlabelled
        test_x=test.inputs,
        test_y=test.labels.astype(np.uint8),
    )
    print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
