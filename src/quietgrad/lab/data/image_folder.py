"""A user's own images: one folder a class, optionally under train/ and test/; unlabelled ones in public/."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy import ndarray

from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.examples import Examples
from quietgrad.lab.data.source import Source, image_normalisation

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


def read_image_folder(root: Path) -> Source:
    """Images of one size, grey if all of them are, else RGB; classes are the folders' names, sorted."""
    split = (root / "train").is_dir()
    train_root = root / "train" if split else root
    classes = _class_names(train_root)
    mode = "L" if all(_mode(path) in ("1", "L") for path in _images(root, deep=True)) else "RGB"
    test_root, public_root = root / "test", root / "public"
    train = _labelled(train_root, classes, mode)
    return Source(
        train=train,
        test=_labelled(test_root, classes, mode) if split and test_root.is_dir() else None,
        num_classes=len(classes),
        normalisation=image_normalisation(train.inputs),
        public_inputs=_stack(_images(public_root, deep=True), mode)
        if split and public_root.is_dir()
        else None,
        notes=f"classes are folder names, assumed to be public: {', '.join(classes)}",
    )


def _class_names(folder: Path) -> list[str]:
    names = sorted(
        entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    if len(names) < 2:
        raise DataError(
            f"{folder} has {len(names)} sub-folders. Put the images of each class into a folder of its own."
        )
    return names


def _labelled(folder: Path, classes: list[str], mode: str) -> Examples:
    found = _class_names(folder)
    if found != classes:
        odd = sorted(set(found) ^ set(classes))[0]
        raise DataError(
            f"{folder}: class {odd!r} is in only one of train and test. Use the same class folders."
        )
    paths = [
        (path, label) for label, name in enumerate(classes) for path in _images(folder / name, deep=False)
    ]
    return Examples(
        _stack([path for path, _ in paths], mode), np.array([label for _, label in paths], dtype=np.int64)
    )


def _images(folder: Path, *, deep: bool) -> list[Path]:
    entries = folder.rglob("*") if deep else folder.iterdir()
    found = sorted(path for path in entries if path.suffix.lower() in SUFFIXES)
    if not found:
        raise DataError(
            f"{folder} has no images ({', '.join(sorted(SUFFIXES))}). Add some or remove the folder."
        )
    return found


def _mode(path: Path) -> str:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return str(image.mode)
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(f"{path} is not a readable image. Replace or remove it.") from error


def _stack(paths: list[Path], mode: str) -> ndarray:
    """uint8 images [n, c, h, w]; an image of another size than the first is an error."""
    first = _pixels(paths[0], mode)
    images = np.empty((len(paths), *first.shape), dtype=np.uint8)
    for row, path in enumerate(paths):
        pixels = _pixels(path, mode)
        if pixels.shape != first.shape:
            sizes = " and ".join(f"{shape[2]}x{shape[1]}" for shape in (pixels.shape, first.shape))
            raise DataError(f"{path} and {paths[0]} differ in size ({sizes}). Resize all images to one size.")
        images[row] = pixels
    return images


def _pixels(path: Path, mode: str) -> ndarray:
    from PIL import Image

    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert(mode))
    except (OSError, SyntaxError) as error:  # Pillow raises SyntaxError on some broken PNG chunks
        raise DataError(f"{path} is damaged ({error}). Replace or remove it.") from error
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)
