"""``grposweep report``: one HTML file that opens from disk and needs no network."""

from grposweep.report.html.write import write_report

__all__ = ["write_report"]
