"""The files of a sweep on disk: names, records, folders."""
