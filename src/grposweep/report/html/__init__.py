"""``grposweep report``: one HTML file that opens from disk, without a network, now and in ten years."""

from grposweep.report.html.write import write_report

__all__ = ["write_report"]
