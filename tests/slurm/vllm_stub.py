"""Stands in for a vLLM server where only a job's steps are tested: says where it is, answers 503
for a while, then 200.

The real server is in tests/gpu_stack/test_vllm_server.py.
"""

import http.server
import os
import time

READY = time.monotonic() + 3


class Answers(http.server.BaseHTTPRequestHandler):
    """As vLLM's own, of which a job asks /health alone; it has no other path."""

    def do_GET(self) -> None:
        """An error until the model is there."""
        is_ready = time.monotonic() > READY
        self.send_response(404 if self.path != "/health" else 200 if is_ready else 503)
        self.end_headers()


if __name__ == "__main__":
    print(
        "node",
        os.environ["SLURMD_NODENAME"],
        "gpus",
        os.environ["CUDA_VISIBLE_DEVICES"],
        flush=True,
    )
    http.server.HTTPServer(("", int(os.environ["GRPOSWEEP_VLLM_PORT"])), Answers).serve_forever()
