"""Random damage of a SQLite file and its log, the same for the same seed."""

import random
from collections.abc import Callable
from pathlib import Path

PAGE = 8192


def damage_file(path: Path, seed: int) -> str:
    """Damage a database or its write-ahead log, and return a description."""
    dice = random.Random(seed)  # noqa: S311 - must be repeatable
    wal = Path(f"{path}-wal")
    kinds: list[Callable[[Path, random.Random], str]] = [
        _flip_bits,
        _random_bytes,
        _garbage_page,
        _zero_page,
        _swap_pages,
        _truncate,
    ]
    if dice.random() < 0.25:
        return _damage_log(wal, dice)
    wal.unlink()
    return dice.choice(kinds)(path, dice)


def _damage_log(wal: Path, dice: random.Random) -> str:
    kind = dice.choice(["lost", "cut", "flipped", "zeroed"])
    size = wal.stat().st_size
    if kind == "lost":
        wal.unlink()
        return "log lost"
    if kind == "cut":
        length = dice.randrange(size)
        with wal.open("r+b") as file:
            file.truncate(length)
        return f"log cut to {length}"
    if kind == "flipped":
        return f"log: {_flip_bits(wal, dice)}"
    return f"log: {_write(wal, dice.randrange(size), bytes(4096), size)}"


def _flip_bits(path: Path, dice: random.Random) -> str:
    data = bytearray(path.read_bytes())
    offsets = [dice.randrange(len(data)) for _ in range(dice.choice([1, 1, 2, 8, 16]))]
    for offset in offsets:
        data[offset] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    return f"bits flipped at {offsets}"


def _random_bytes(path: Path, dice: random.Random) -> str:
    size, length = path.stat().st_size, dice.choice([16, 512, 4096])
    return _write(path, dice.randrange(size // 512) * 512, dice.randbytes(length), size)


def _garbage_page(path: Path, dice: random.Random) -> str:
    size = path.stat().st_size
    return _write(path, dice.randrange(size // PAGE) * PAGE, dice.randbytes(PAGE), size)


def _zero_page(path: Path, dice: random.Random) -> str:
    size = path.stat().st_size
    return _write(path, dice.randrange(size // PAGE) * PAGE, bytes(PAGE), size)


def _swap_pages(path: Path, dice: random.Random) -> str:
    """Write a page to the place of another one, as a failing disk does."""
    data = bytearray(path.read_bytes())
    pages = len(data) // PAGE
    source, target = dice.randrange(1, pages), dice.randrange(1, pages)
    data[target * PAGE : (target + 1) * PAGE] = data[source * PAGE : (source + 1) * PAGE]
    path.write_bytes(data)
    return f"page {source + 1} copied over page {target + 1}"


def _truncate(path: Path, dice: random.Random) -> str:
    size = path.stat().st_size
    length = dice.choice([0, 1, 50, dice.randrange(size), dice.randrange(size // PAGE) * PAGE])
    with path.open("r+b") as file:
        file.truncate(length)
    return f"truncated to {length}"


def _write(path: Path, offset: int, data: bytes, size: int) -> str:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data[: size - offset])
    return f"{len(data)} bytes overwritten at {offset}"
