"""What weights are these? Digests over a sample of every tensor: of files, of a live model, of an adapter.

Both are taken of a model: some platforms repack weights after loading so that no parameter shows them, and a
weight update in place never reaches the files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SAMPLE_BYTES = 64
SAMPLES_PER_TENSOR = 3
LIVE_BYTES = 64
HEADER_BYTES_MAX = 100 << 20
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
MIXER = 0x9E3779B97F4A7C15

log = logging.getLogger(__name__)


def files_digest(folder: Path) -> str | None:
    """Digest of the weights in a folder; None where there are none or they can't be read.

    How tensors are spread over files doesn't matter for safetensors; of other formats each file is sampled.
    """
    files = sorted(path for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES)
    tensors = [path for path in files if path.suffix == ".safetensors"]
    entries: list[bytes] = []
    try:
        for path in tensors or files:
            entries += _sample_safetensors(path) if tensors else [_sample_file(path)]
    except (OSError, ValueError, KeyError) as error:
        log.warning("the weights in %s can't be sampled: %s", folder, error)
        return None
    return _combine(sorted(entries)) if entries else None


def model_folder(name: str, revision: str | None) -> Path | None:
    """Where the files of a model lie on this machine: a folder, or the hub's cache."""
    if os.path.isdir(name):
        return Path(name)
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except Exception:  # noqa: BLE001 -- the hub's client has many errors, all of which mean: not on this machine
        return None


def live_digest(model: Any) -> str:
    """Digest over a few bytes of every parameter of a torch model, whatever its dtype and device."""
    import torch

    names: list[bytes] = []
    samples: list[Any] = []
    for name, parameter in sorted(model.named_parameters(), key=lambda entry: str(entry[0])):
        names.append(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        tensor = parameter.detach()
        if tensor.numel() == 0 or tensor.device.type == "meta":
            continue
        raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        first = tensor.storage_offset() * tensor.element_size()
        length = min(tensor.numel() * tensor.element_size(), raw.numel() - first)
        places = [first + (i * MIXER) % length for i in range(LIVE_BYTES)]
        samples.append(raw[torch.tensor(places, device=tensor.device)])
    data = torch.cat([sample.cpu() for sample in samples]) if samples else torch.empty(0, dtype=torch.uint8)
    return _combine([*names, bytes(data.tolist())])


def adapter_digest(path: str) -> str | None:
    """Digest of an adapter's whole content; None where it isn't a folder on this machine."""
    folder = model_folder(path, None)
    if folder is None:
        return None
    hasher = hashlib.sha256()
    try:
        for file in sorted(p for p in folder.iterdir() if p.suffix in (*WEIGHT_SUFFIXES, ".json")):
            hasher.update(f"{file.name} {file.stat().st_size}\n".encode())
            with file.open("rb") as stream:
                hasher.update(hashlib.file_digest(stream, "sha256").digest())
    except OSError as error:
        log.warning("the adapter in %s can't be read: %s", folder, error)
        return None
    return hasher.hexdigest()[:32]


def _sample_safetensors(path: Path) -> list[bytes]:
    """One entry a tensor: name, dtype, shape and a few bytes of it. Format: u64 length, JSON, data."""
    entries: list[bytes] = []
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > HEADER_BYTES_MAX:
            raise ValueError(f"{path.name}: a header of {length} bytes")
        table = json.loads(stream.read(length))
        base = 8 + length
        for name, about in table.items():
            if name == "__metadata__":
                continue
            begin, end = about["data_offsets"]
            last = max(0, end - begin - SAMPLE_BYTES)
            data = b""
            for i in range(SAMPLES_PER_TENSOR):
                offset = begin + last * i // (SAMPLES_PER_TENSOR - 1)
                data += os.pread(stream.fileno(), min(SAMPLE_BYTES, end - offset), base + offset)
            entries.append(f"{name} {about['dtype']} {about['shape']} ".encode() + data)
    return entries


def _sample_file(path: Path) -> bytes:
    """A file whose tensors we can't find: one sample a MiB."""
    size = path.stat().st_size
    hasher = hashlib.sha256(f"{size} ".encode())
    with path.open("rb") as stream:
        for offset in range(0, size, 1 << 20):
            hasher.update(os.pread(stream.fileno(), SAMPLE_BYTES, offset))
    return hasher.digest()


def _combine(parts: Iterable[bytes]) -> str:
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little") + part)
    return hasher.hexdigest()[:32]
