"""Stands in for a vLLM server, which needs a GPU: says where it is, answers 503 for a while, then 200."""

import http.server
import os
import time

READY = time.monotonic() + 3


class Answers(http.server.BaseHTTPRequestHandler):
    """Any path."""

    def do_GET(self) -> None:
        """As vLLM's /health: an error until the model is there."""
        self.send_response(200 if time.monotonic() > READY else 503)
        self.end_headers()


if __name__ == "__main__":
    print("node", os.environ["SLURMD_NODENAME"], "gpus", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    http.server.HTTPServer(("", int(os.environ["GRPOSWEEP_VLLM_PORT"])), Answers).serve_forever()
