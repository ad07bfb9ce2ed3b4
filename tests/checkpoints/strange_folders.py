"""Opens, packs and saves over folders that a stranger has made; a process of its own, one a line.

What it prints of each is what came of it, as JSON: an error by name, or that all went well.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import resource
import shutil
import socket
import stat
import struct
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import torch

import asyncgen
from asyncgen.errors import AsyncgenError
from asyncgen.reference.quantize_checkpoint import quantize_checkpoint

SECRET = "the private words of somebody else"
SMALL = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "additional_chat_templates/tool.jinja",
    "config_sentence_transformers.json",
    "modules.json",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "model.safetensors.index.json",
)
"""Small files that are read of a folder."""
NAMES = (
    *SMALL,
    "model.safetensors",
    "model-00001-of-00002.safetensors",
    "merges.txt",
    "vocab.json",
    "model.gguf",
)
WORDS = (
    "../outside/secret",
    "/etc/passwd",
    "..",
    ".",
    "",
    "a\0b",
    "a\\..\\b",
    "CONFIG.JSON",
    "x" * 5000,
    "../" * 40 + "etc/passwd",
    "\ud800",
    "CON",
    "~/secret",
    "tool",
    "Tool",
    "../outside/more/secret.jinja",
)


class Opened:
    """Counts what is opened in a folder, by whatever code: an inotify of the kernel."""

    def __init__(self, folder: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._number = self._libc.inotify_init1(os.O_NONBLOCK)
        opened_or_changed = 0x20 | 0x2 | 0x100 | 0x200 | 0x40 | 0x80 | 0x4
        for each in (folder, *(one for one in folder.rglob("*") if one.is_dir())):
            assert self._libc.inotify_add_watch(
                self._number, os.fsencode(each), opened_or_changed
            ) > 0  # fmt: skip

    def names(self) -> list[str]:
        """Return the names of files that were opened, made, changed or removed; watch no more."""
        try:
            data = os.read(self._number, 1 << 16)
        except BlockingIOError:
            return []
        finally:
            os.close(self._number)
        found, place = [], 0
        while place < len(data):
            _, mask, _, size = struct.unpack_from("iIII", data, place)
            name = data[place + 16 : place + 16 + size].rstrip(b"\0").decode()
            if not mask & 0x40000000 or mask & ~0x40000020:  # not: a folder was listed
                found.append(name)
            place += 16 + size
        return found


def spoil(folder: Path, outside: Path, pick: random.Random) -> None:
    """Replace or change one entry."""
    file = folder / pick.choice(NAMES)
    file.parent.mkdir(exist_ok=True)
    kind = pick.randrange(19)
    if kind < 9:
        remove(file)
    match kind:
        case 0:
            file.symlink_to(outside / "secret")
        case 1:
            file.symlink_to(
                os.path.relpath(outside / pick.choice(["secret", "more/secret.jinja"]), file.parent)
            )
        case 2:
            os.mkfifo(file)
        case 3:
            file.symlink_to(
                pick.choice(["/dev/zero", "/dev/stdin", "/proc/self/environ", "/dev/full"])
            )
        case 4:
            with file.open("wb") as stream:
                stream.truncate(20_000_000_000)
        case 5:
            file.mkdir()
        case 6:
            file.symlink_to(pick.choice(["nowhere", file.name, "config.json", "../" + folder.name]))
        case 7:
            with closing(socket.socket(socket.AF_UNIX)) as found, suppress(OSError):
                found.bind(os.path.relpath(file))
        case 8:
            file.write_bytes(pick.randbytes(pick.randrange(2000)))
        case 9 | 10 if file.is_file() and not file.is_symlink():
            content = bytearray(file.read_bytes()[:1_000_000])
            for _ in range(pick.randrange(1, 8)):
                content[pick.randrange(len(content) or 1) : pick.randrange(len(content) or 1)] = (
                    pick.choice(
                        [b"", b"\0", b'"', b"[" * 3000, b"9" * 400, b"-1", b"null", b"1e999"]
                    )
                )
            file.write_bytes(bytes(content))
        case 11:
            named = [{"name": pick.choice(WORDS), "template": "{{ messages[0].content }}"}]
            write(folder / "tokenizer_config.json", json.dumps({"chat_template": named}))
        case 12:
            remove(folder / "model.safetensors")
            index = {"weight_map": {"a": pick.choice(WORDS)}}
            if not (folder / "model.safetensors.index.json").is_symlink():
                with suppress(OSError):
                    write(folder / "model.safetensors.index.json", json.dumps(index))
        case 13:
            listed = [{"type": "x.Pooling", "path": pick.choice(WORDS)}]
            write(folder / "modules.json", json.dumps(listed))
        case 14:
            more = folder / "additional_chat_templates"
            if not more.exists() and not more.is_symlink():
                more.symlink_to(outside / "more")
        case 15:
            for name in (
                "config.json",
                "model.safetensors",
                "chat_template.jinja",
                "tokenizer.json",
            ):
                with suppress(FileExistsError):
                    (folder / f".{name}.part").symlink_to(outside / "secret")
        case 16:  # names that are one name elsewhere
            for name in (
                file.name.upper(),
                file.name.title(),
                f"{file.name} ",
                f"a\\..\\{file.name}",
            ):
                with suppress(FileExistsError):
                    (file.parent / name).symlink_to(outside / "secret")
        case 17:
            words = [pick.choice([*WORDS, f"{outside}/secret"]) for _ in range(3)]
            named = [{"name": word, "template": word} for word in words]
            write(folder / "tokenizer_config.json", json.dumps({"chat_template": named}))
        case 18:
            remove(file)
            with suppress(PermissionError):
                os.mknod(file, 0o666 | stat.S_IFCHR, os.makedev(1, 5))


def remove(place: Path) -> None:
    """Remove an entry of any kind, if it is there."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def write(file: Path, text: str) -> None:
    """Write a file in a stranger's folder, and nowhere else."""
    if not file.is_symlink() and (file.is_file() or not file.exists()):
        file.write_text(text)


def tried(act: Any, *given: Any, **more: Any) -> tuple[Any, str]:
    """Return a result, and what kind of error there was."""
    try:
        return act(*given, **more), ""
    except AsyncgenError as error:
        if len(str(error)) > 5000 or SECRET in str(error):
            return None, f"an error of {len(str(error))} characters, or with private words"
        return None, ""
    except BaseException as error:
        return None, f"{type(error).__name__}: {str(error)[:200]}"


def around(place: Path, folder: Path) -> set[str]:
    """Return all that lies beside and above a folder, without itself."""
    return {str(one) for one in (*place.iterdir(), *place.parent.iterdir()) if one != folder}


def holds_private_words(folder: Path) -> bool:
    """Tell whether a file in a folder has the words of the one outside; links are not followed."""
    files = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    plain = (file for file in files if stat.S_ISREG(file.lstat().st_mode))
    return any(SECRET.encode() in each.read_bytes() for each in plain if each.stat().st_size < 1e8)


def run(whole: Path, place: Path, seed: int) -> str:
    """Make a folder, open it, pack it, save over it; return what was wrong."""
    pick = random.Random(seed)
    outside, folder = place / "outside", place / f"it{seed}"
    shutil.copytree(whole, folder)
    os.chdir(place)
    for _ in range(pick.randrange(1, 4)):
        spoil(folder, outside, pick)
    entries = around(place, folder)
    seen = Opened(outside)
    began = time.monotonic()
    model, wrong = tried(asyncgen.load_model, folder, device="cpu", progress=False)
    found = [wrong]
    tokenizer, wrong = tried(asyncgen.load_tokenizer, folder)
    found.append(wrong)
    seconds = time.monotonic() - began
    if seconds > 10:
        found.append(f"opened in {seconds:.0f} s")
    if tokenizer is not None:
        shown, wrong = tried(
            tokenizer.apply_chat_template, [{"role": "user", "content": "a"}], tokenize=False
        )
        found += [wrong, "private words in a chat" if SECRET in str(shown) else ""]
    packed = place / f"packed{seed}"
    found.append(tried(quantize_checkpoint, folder, packed, progress=False)[1])
    good = asyncgen.load_model(whole, device="cpu", progress=False)
    for each in (model, tokenizer, good, asyncgen.load_tokenizer(whole)):
        if each is not None:
            found.append(tried(each.save_pretrained, folder)[1])
    for one in (folder, packed):
        if holds_private_words(one):
            found.append(f"private words in {one.name}")
    shutil.rmtree(packed, ignore_errors=True)
    names = seen.names() or sorted(around(place, folder) ^ entries)
    if names:
        found.append(f"outside was opened or changed: {names[:3]}")
    shutil.rmtree(folder, ignore_errors=True)
    return "; ".join(filter(None, found))


_CALL = re.compile(r"\d+ +(\w+)\((.*)\) += (?:\d+<(.*)>|\d+|\?|-1 .*)$")
_PLACE = re.compile(r'(?:\d+|AT_FDCWD)<([^>]*)>, "((?:[^"\\]|\\.)*)"')
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_CHANGES = re.compile(r"rename|unlink|mkdir|rmdir|link|truncate|chmod|chown|mknod|creat")


def strayed(log: Path, place: Path, whole: Path) -> set[str]:
    """Return what a process opened or changed outside of its folders, of what strace wrote.

    Args:
        log: Output of ``strace -f -y -e trace=%file``.
        place: Where strange folders are made.
        whole: The good folder, which is only read.
    """
    own = tuple(f"{place}/{name}" for name in ("it", "packed"))
    code = (sys.prefix, sys.base_prefix, f"{Path(__file__).parents[2]}", "/usr", "/lib", "/sys")
    system = ("/proc", "/etc/ld.so", "/etc/locale", "/etc/ssl", "/dev/null", "/dev/urandom")
    read = (f"{whole}", *code, *system)
    found = set()
    for line in log.read_text(errors="replace").splitlines():
        if (call := _CALL.match(line)) is None:
            continue
        name, given, opened = call.groups()
        looks = "O_PATH" in given or "O_DIRECTORY" in given
        if opened is not None and name.startswith("open") and not looks:
            writes = "O_WRONLY" in given or "O_RDWR" in given
            is_own = opened.startswith(own if writes else own + read) or opened == "/dev/null"
            # A library looks at its own environment when it is imported, by an old call.
            if not is_own or (opened.endswith("/environ") and name != "open"):
                found.add(f"{name}: {opened}")
        elif _CHANGES.search(name) and name != "readlink" and name != "readlinkat":
            pairs = _PLACE.findall(given)
            if not pairs:  # what a link says is of the folder that was made
                pairs = [(f"{place}", each) for each in _TEXT.findall(given)[-1:]]
            for folder, inside in pairs:
                if not os.path.normpath(os.path.join(folder, inside)).startswith(own):
                    found.add(f"{name}: {folder}, {inside}")
    return found


def main() -> None:
    """Read seeds from standard input."""
    torch.set_num_threads(1)
    whole, place = Path(sys.argv[1]), Path(sys.argv[2])
    asyncgen.load_model(whole, device="cpu", progress=False)
    os.environ["HOME"] = str(place / "outside")
    usual = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for line in sys.stdin:
        wrong = run(whole, place, int(line))
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - usual) // 1024
        sys.stdout.write(json.dumps([wrong, more]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
